// Settlement, locks and time: what becomes of a message after its delivery, and when.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { HOUR, assertEmpty, bodies, later, range, receive, refused, test, until } from "./harness.mjs";

// ── Settlement and locks ────────────────────────────────────────────────────

test("an abandoned message comes back with its changed properties", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages({ body: "x", applicationProperties: { kept: "a", changed: "old" } });
  const receiver = t.receiver(queue);
  const [first] = await receive(receiver);
  await receiver.abandonMessage(first, { changed: "new", added: 5 });
  const [again] = await receive(receiver);
  assert.equal(again.deliveryCount, 1);
  assert.deepEqual({ ...again.applicationProperties }, { kept: "a", changed: "new", added: 5 });
  assert.ok(again.sequenceNumber.equals(first.sequenceNumber));
});

test("a deferred message comes by its number only", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages({ body: "later" });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  await receiver.deferMessage(message, { why: "busy" });
  await assertEmpty(receiver);
  const [again] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  assert.equal(again.body, "later");
  assert.equal(again.applicationProperties.why, "busy");
  await receiver.completeMessage(again);
  await refused("MessageNotFound", receiver.receiveDeferredMessages(message.sequenceNumber));
});

test("deferred messages can be received and deleted", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages(["a", "b"].map((body) => ({ body })));
  const receiver = t.receiver(queue);
  const messages = await receive(receiver, 2);
  for (const message of messages) await receiver.deferMessage(message);
  const deleting = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  const numbers = messages.map((message) => message.sequenceNumber);
  assert.deepEqual(bodies(await deleting.receiveDeferredMessages(numbers)), ["a", "b"]);
  await refused("MessageNotFound", deleting.receiveDeferredMessages(numbers));
});

test("an unknown deferred number is not found", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages({ body: "active" });
  const receiver = t.receiver(queue);
  const [{ sequenceNumber }] = await receiver.peekMessages(1);
  await refused("MessageNotFound", receiver.receiveDeferredMessages(sequenceNumber));
  await refused("MessageNotFound", receiver.receiveDeferredMessages(sequenceNumber.add(987654)));
});

test("a message is dead-lettered with reason, description and properties", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages({ body: "bad", applicationProperties: { k: "v" } });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  const why = { deadLetterReason: "because", deadLetterErrorDescription: "of this", extra: "more" };
  await receiver.deadLetterMessage(message, why);
  const dead = t.dead(queue);
  const [letter] = await receive(dead);
  assert.equal(letter.body, "bad");
  assert.equal(letter.deadLetterReason, "because");
  assert.equal(letter.deadLetterErrorDescription, "of this");
  assert.equal(letter.applicationProperties.k, "v");
  assert.equal(letter.applicationProperties.extra, "more");
  await dead.completeMessage(letter);
  await assertEmpty(dead);
});

test("too many deliveries end in the dead-letter queue", async (t) => {
  const queue = await t.queue({ maxDeliveryCount: 2 });
  await t.sender(queue).sendMessages({ body: "poison" });
  const receiver = t.receiver(queue);
  for (const _ of range(2)) await receiver.abandonMessage((await receive(receiver))[0]);
  const [letter] = await receive(t.dead(queue));
  assert.equal(letter.deadLetterReason, "MaxDeliveryCountExceeded");
});

test("renewing moves the end of the lock", async (t) => {
  const queue = await t.queue({ lockDuration: "PT2S" });
  await t.sender(queue).sendMessages({ body: "long work" });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  const firstEnd = message.lockedUntilUtc;
  await sleep(600);
  const renewed = await receiver.renewMessageLock(message);
  assert.ok(renewed.getTime() >= firstEnd.getTime() + 500);
  await until(async () => Date.now() > firstEnd.getTime() + 100, "the first lock would have ended");
  await receiver.completeMessage(message);
});

test("the automatic renewal of the SDK keeps a lock", async (t) => {
  const queue = await t.queue({ lockDuration: "PT2S" });
  await t.sender(queue).sendMessages({ body: "long work" });
  const receiver = t.receiver(queue, { maxAutoLockRenewalDurationInMs: 60_000 });
  const [message] = await receive(receiver);
  const firstEnd = message.lockedUntilUtc.getTime();
  await until(async () => Date.now() > firstEnd + 700, "the first lock would have ended");
  await receiver.completeMessage(message);
});

test("a settlement after expiry is refused and the message comes again", async (t) => {
  const queue = await t.queue({ lockDuration: "PT1S" });
  await t.sender(queue).sendMessages({ body: "x" });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  await until(async () => Date.now() > message.lockedUntilUtc.getTime() + 100, "the lock has expired");
  await refused("MessageLockLost", receiver.completeMessage(message));
  await refused("MessageLockLost", receiver.renewMessageLock(message));
  const [again] = await receive(t.receiver(queue));
  assert.equal(again.deliveryCount, 1);
});

// ── Time ────────────────────────────────────────────────────────────────────

test("an expired message is dead-lettered when the queue says so", async (t) => {
  const queue = await t.queue({ deadLetteringOnMessageExpiration: true });
  await t.sender(queue).sendMessages({ body: "late", timeToLive: 1000 });
  const [letter] = await receive(t.dead(queue));
  assert.equal(letter.deadLetterReason, "TTLExpiredException");
});

test("scheduled messages appear at their time unless cancelled", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  const due = later(1500);
  const numbers = await sender.scheduleMessages([{ body: "a" }, { body: "b" }], due);
  assert.equal(numbers.length, 2);
  await sender.cancelScheduledMessages(numbers[0]);
  const receiver = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  await assertEmpty(receiver);
  const [message] = await receive(receiver);
  assert.equal(message.body, "b");
  assert.ok(Date.now() >= due.getTime() - 50);
  await assertEmpty(receiver);
  await refused("MessageNotFound", sender.cancelScheduledMessages(numbers[0]));
});

test("a scheduled time can be a property of a sent message", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages([{ body: "later", scheduledEnqueueTimeUtc: later(1500) }, { body: "now" }]);
  const receiver = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(receiver)), ["now"]);
  assert.deepEqual(bodies(await receive(receiver)), ["later"]);
});

test("peek shows every state and locks nothing", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  await sender.sendMessages(["deferred", "active"].map((body) => ({ body })));
  await sender.scheduleMessages({ body: "scheduled" }, later(HOUR));
  const receiver = t.receiver(queue);
  await receiver.deferMessage((await receive(receiver))[0]);
  const looker = t.receiver(queue);
  const peeked = [...(await looker.peekMessages(1)), ...(await looker.peekMessages(10))];
  const states = Object.fromEntries(peeked.map((message) => [message.body, message.state]));
  assert.deepEqual(states, { deferred: "deferred", active: "active", scheduled: "scheduled" });
  const fromSecond = await looker.peekMessages(10, { fromSequenceNumber: peeked[1].sequenceNumber });
  assert.deepEqual(bodies(fromSecond), bodies(peeked).slice(1));
  assert.deepEqual(bodies(await receive(looker)), ["active"]);
});

test("a repeated id is accepted and dropped", async (t) => {
  const queue = await t.queue({ requiresDuplicateDetection: true });
  const sender = t.sender(queue);
  for (const body of ["first", "second"]) await sender.sendMessages({ body, messageId: "same" });
  const receiver = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await receive(receiver)), ["first"]);
  await assertEmpty(receiver);
});
