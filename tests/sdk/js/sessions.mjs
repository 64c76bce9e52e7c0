// Sessions: accepting them, their order, their locks and their state.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { assertEmpty, bodies, input, later, range, receive, refused, test, until } from "./harness.mjs";

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

test("a closed receiver gives its session and messages back", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  await t.sender(queue).sendMessages(of("größe/1", "1", "2"));
  const first = t.use(await t.client.acceptSession(queue, "größe/1", QUIET));
  assert.deepEqual(bodies(await receive(first, 2)), ["1", "2"]);
  await first.close();
  const second = t.use(await t.client.acceptNextSession(queue, QUIET));
  assert.equal(second.sessionId, "größe/1");
  const found = await receive(second, 2);
  assert.deepEqual(found.map((message) => [message.body, message.deliveryCount]), [["1", 0], ["2", 0]]);
});

test("a session that is lost counts as a delivery", async (t) => {
  const queue = await t.queue({ requiresSession: true, lockDuration: "PT1S" });
  await t.sender(queue).sendMessages(of("s", "1"));
  const receiver = t.use(await t.client.acceptSession(queue, "s", QUIET));
  const [message] = await receive(receiver);
  const again = t.use(await t.client.acceptNextSession(queue, QUIET));
  await refused("SessionLockLost", receiver.completeMessage(message));
  const [second] = await receive(again);
  assert.deepEqual([second.body, second.deliveryCount], ["1", 1]);
});

test("the automatic renewal of the SDK keeps a session", async (t) => {
  const queue = await t.queue({ requiresSession: true, lockDuration: "PT2S" });
  await t.sender(queue).sendMessages(of("s", "long work"));
  const receiver = t.use(await t.client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 60_000 }));
  const [message] = await receive(receiver);
  const firstEnd = message.lockedUntilUtc.getTime();
  await until(async () => Date.now() > firstEnd + 500, "the first lock would have ended");
  await receiver.completeMessage(message);
});

test("dead letters of a session are received without one", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  await t.sender(queue).sendMessages(of("s", "bad", "good"));
  const receiver = t.use(await t.client.acceptSession(queue, "s", QUIET));
  const [bad] = await receive(receiver);
  await receiver.deadLetterMessage(bad, { deadLetterReason: "broken", deadLetterErrorDescription: "why" });
  assert.deepEqual(bodies(await receive(receiver)), ["good"]);
  const [letter] = await receive(t.dead(queue));
  assert.deepEqual([letter.body, letter.sessionId, letter.deadLetterReason], ["bad", "s", "broken"]);
});

test("sessions of a subscription", async (t) => {
  const topic = `js-topic-${randomUUID().slice(0, 12)}`;
  await t.admin.createTopic(topic);
  await t.admin.createSubscription(topic, "s", { requiresSession: true });
  await t.sender(topic).sendMessages([...of("x", "1", "2"), ...of("y", "3"), { body: "none" }]);
  const named = t.use(await t.client.acceptSession(topic, "s", "y", QUIET));
  const next = t.use(await t.client.acceptNextSession(topic, "s", QUIET));
  assert.deepEqual([named.sessionId, next.sessionId], ["y", "x"]);
  await next.setSessionState({ at: 2 });
  assert.deepEqual(await next.getSessionState(), { at: 2 });
  assert.deepEqual(bodies(await receive(next, 2)), ["1", "2"]);
  assert.deepEqual(bodies(await receive(named)), ["3"]);
  const dead = t.use(t.client.createReceiver(topic, "s", { subQueueType: "deadLetter" }));
  assert.deepEqual(bodies(await receive(dead)), ["none"]);
});

test("ids of sessions have limits", async (t) => {
  const queue = await t.queue({ requiresSession: true });
  const sender = t.sender(queue);
  const longest = "s".repeat(128);
  await sender.sendMessages(of(longest, "fits"));
  await assert.rejects(sender.sendMessages(of(`${longest}s`, "too long")), /129|sessionId/);
  await assert.rejects(sender.sendMessages({ body: "x", sessionId: "a", partitionKey: "b" }), /partitionKey/);
  const receiver = t.use(await t.client.acceptSession(queue, longest, QUIET));
  assert.deepEqual(bodies(await receive(receiver)), ["fits"]);
});
