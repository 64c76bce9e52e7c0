// Sessions: accepting them, their order, their locks and their state.

import assert from "node:assert/strict";
import { assertEmpty, bodies, input, later, range, receive, refused, test } from "./harness.mjs";

const of = (sessionId, ...list) => list.map((body) => ({ body, sessionId }));
const QUIET = { maxAutoLockRenewalDurationInMs: 0 };

test("a named session is received in order", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  await t.sender(queue).sendMessages([...of("a", "1", "2"), ...of("b", "other"), ...of("a", "3")]);
  const receiver = t.use(await t.client.acceptSession(queue, "a", QUIET));
  assert.equal(receiver.sessionId, "a");
  assert.ok(receiver.sessionLockedUntilUtc > new Date());
  const found = await receive(receiver, 3);
  assert.deepEqual(bodies(found), ["1", "2", "3"]);
  for (const message of found) await receiver.completeMessage(message);
  await assertEmpty(receiver);
  await refused("SessionCannotBeLocked", t.client.acceptSession(queue, "a", QUIET));
});

test("the next session is accepted until there is none", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  await t.sender(queue).sendMessages([...of("x", "1"), ...of("y", "2")]);
  const first = t.use(await t.client.acceptNextSession(queue, QUIET));
  const second = t.use(await t.client.acceptNextSession(queue, QUIET));
  assert.deepEqual([first.sessionId, second.sessionId], ["x", "y"]);
  const hurried = t.other(input.connectionString, {
    retryOptions: { maxRetries: 0, timeoutInMs: 2000 },
  });
  await refused("ServiceTimeout", hurried.acceptNextSession(queue, QUIET));
});

test("session state is kept", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  const receiver = t.use(await t.client.acceptSession(queue, "s", QUIET));
  assert.equal(await receiver.getSessionState(), null);
  await receiver.setSessionState(Buffer.from("hello"));
  await receiver.close();
  const again = t.use(await t.client.acceptSession(queue, "s", QUIET));
  const state = await again.getSessionState();
  assert.ok(state.toString().includes("hello"));
  await again.setSessionState(null);
  assert.equal(await again.getSessionState(), null);
});

test("a session lock is renewed", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  const receiver = t.use(await t.client.acceptSession(queue, "s", QUIET));
  const before = receiver.sessionLockedUntilUtc;
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.ok((await receiver.renewSessionLock()) > before);
});

test("deferred, scheduled and peeked messages of a session", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  const sender = t.sender(queue);
  await sender.sendMessages([...of("s", "1", "2"), ...of("other", "x")]);
  await sender.scheduleMessages(of("s", "late"), later(1500));
  const receiver = t.use(await t.client.acceptSession(queue, "s", QUIET));
  assert.deepEqual(bodies(await receiver.peekMessages(10)), ["1", "2", "late"]);
  const [first] = await receive(receiver);
  await receiver.deferMessage(first);
  const [again] = await receiver.receiveDeferredMessages(first.sequenceNumber);
  await receiver.completeMessage(again);
  assert.deepEqual(bodies(await receive(receiver, 2)), ["2", "late"]);
});

test("refusals of sessions", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  const plain = await t.queue();
  await refused("GeneralError", t.sender(queue).sendMessages({ body: "no session" }));
  // Whatever the condition: the SDK looks at the answer's session id, which a refused link does not have.
  await refused("SessionCannotBeLocked", t.client.acceptSession(plain, "s", QUIET));
  await refused("GeneralError", t.receiver(queue).receiveMessages(1, { maxWaitTimeInMs: 2000 }));
});

test("sessions received and deleted", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  await t.sender(queue).sendMessages(of("s", ...range(5)));
  const receiver = t.use(await t.client.acceptSession(queue, "s", { ...QUIET, receiveMode: "receiveAndDelete" }));
  assert.deepEqual(bodies(await receive(receiver, 5)), range(5));
  await assertEmpty(receiver);
});
