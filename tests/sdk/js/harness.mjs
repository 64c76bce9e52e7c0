// Runs cases one after another and prints one JSON line for each: {"name", "ok", "error"}.
// Input, as JSON in the environment variable PAIRBUS_JS: {connectionString, sendOnly, wrongKey, expired}.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

const CASE_MS = 25_000; // deadline of one case
export const input = JSON.parse(process.env.PAIRBUS_JS ?? "{}");
export const options = { retryOptions: { maxRetries: 0, timeoutInMs: 10_000 } };

export const HOUR = 3_600_000;
export const bodies = (messages) => messages.map((message) => message.body);
export const range = (count) => [...Array(count).keys()];
export const later = (ms) => new Date(Date.now() + ms);

const cases = [];

export function test(name, body) {
  cases.push({ name, body });
}

/** What a case works with; everything opened through it is closed when the case ends. */
class World {
  constructor(client, admin) {
    this.client = client;
    this.admin = admin;
    this.opened = [];
  }

  async queue(settings = {}, name = `js-${randomUUID().slice(0, 12)}`) {
    await this.admin.createQueue(name, settings);
    return name;
  }

  use(closable) {
    this.opened.push(closable);
    return closable;
  }

  sender(queue) {
    return this.use(this.client.createSender(queue));
  }

  // Without automatic renewal, because the cases are about the broker's locks.
  receiver(queue, settings = {}) {
    return this.use(this.client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0, ...settings }));
  }

  dead(queue) {
    return this.receiver(queue, { subQueueType: "deadLetter" });
  }

  other(connectionString, settings = {}) {
    return this.use(new ServiceBusClient(connectionString, { ...options, ...settings }));
  }

  async close() {
    await Promise.all(this.opened.map((closable) => closable.close()));
  }
}

export async function receive(receiver, count = 1, withinMs = 8000) {
  const found = [];
  const deadline = Date.now() + withinMs;
  while (found.length < count && Date.now() < deadline) {
    const wait = { maxWaitTimeInMs: deadline - Date.now() };
    found.push(...(await receiver.receiveMessages(count - found.length, wait)));
  }
  if (found.length !== count) throw new Error(`${found.length} of ${count} messages came within ${withinMs} ms`);
  return found;
}

export async function assertEmpty(receiver) {
  const found = await receiver.receiveMessages(10, { maxWaitTimeInMs: 400 });
  if (found.length) throw new Error(`expected an empty queue, got ${JSON.stringify(found.map((m) => m.body))}`);
}

export async function until(condition, what, withinMs = 8000) {
  const deadline = Date.now() + withinMs;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await sleep(50);
  }
}

/** The promise must be rejected with an error of this code. */
export async function refused(code, promise) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    if (error.code !== code) throw new Error(`expected ${code}, got ${error.code}: ${error.message}`);
    return error;
  }
  throw new Error(`expected ${code}, got no error but ${JSON.stringify(result)}`);
}

async function runCase({ name, body }, client, admin) {
  const world = new World(client, admin);
  const giveUp = new AbortController();
  const deadline = sleep(CASE_MS, null, { signal: giveUp.signal }).then(() => {
    throw new Error(`not done after ${CASE_MS} ms`);
  });
  try {
    await Promise.race([body(world), deadline]);
    return { name, ok: true, error: null };
  } catch (error) {
    return { name, ok: false, error: `${error.code ?? error.name}: ${error.message}\n${error.stack}` };
  } finally {
    giveUp.abort();
    deadline.catch(() => {}); // aborted on purpose
    await Promise.race([world.close().catch(() => {}), sleep(3000)]); // a broken case may leave what cannot be closed
  }
}

export async function main() {
  const only = process.argv.slice(2);
  const client = new ServiceBusClient(input.connectionString, options);
  const admin = new ServiceBusAdministrationClient(input.connectionString, { retryOptions: { maxRetries: 0 } });
  let failed = 0;
  for (const one of cases) {
    if (only.length && !only.includes(one.name)) continue;
    const result = await runCase(one, client, admin);
    failed += result.ok ? 0 : 1;
    console.log(JSON.stringify(result));
  }
  process.exit(failed ? 1 : 0);
}
