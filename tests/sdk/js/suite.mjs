// The genuine JavaScript SDK against the broker: the same features as the Python tests, in the SDK's own words.
// Each `test("…"` of these files is collected as one pytest test; keep the name on the line of the call.

import "./messages.mjs";
import "./settlement.mjs";
import "./namespace.mjs";
import "./topics.mjs";
import "./sessions.mjs";
import { main } from "./harness.mjs";

await main();
