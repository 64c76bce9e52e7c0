// The genuine JavaScript SDK against the broker: the same features as the Python tests, in the SDK's own words.
// Each `test("…"` below is collected as one pytest test; keep the name on the line of the call.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import WebSocket from "ws";
import { assertEmpty, input, main, receive, refused, test, until } from "./harness.mjs";

const bodies = (messages) => messages.map((message) => message.body);
const range = (count) => [...Array(count).keys()];
const later = (ms) => new Date(Date.now() + ms);
const HOUR = 3_600_000;

// ── Sending and receiving ───────────────────────────────────────────────────

test("a single message arrives and is completed", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages({ body: "hello" });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  assert.equal(message.body, "hello");
  assert.equal(message.deliveryCount, 0);
  assert.equal(message.state, "active");
  assert.ok(message.lockToken);
  assert.ok(message.lockedUntilUtc > message.enqueuedTimeUtc);
  assert.ok(message.messageId, "the broker assigns an id when the sender gives none");
  await receiver.completeMessage(message);
  await assertEmpty(receiver);
});

test("a list arrives in its order with growing sequence numbers", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages(range(100).map((i) => ({ body: i })));
  const messages = await receive(t.receiver(queue, { receiveMode: "receiveAndDelete" }), 100);
  assert.deepEqual(bodies(messages), range(100));
  const numbers = messages.map((message) => message.sequenceNumber.toNumber());
  assert.deepEqual(numbers, [...new Set(numbers)].sort((a, b) => a - b));
});

test("a batch is limited by the link and arrives whole", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  const batch = await sender.createMessageBatch();
  assert.equal(batch.maxSizeInBytes, 256 * 1024);
  while (batch.tryAddMessage({ body: Buffer.alloc(1000, 120) }));
  assert.ok(batch.count > 200);
  await sender.sendMessages(batch);
  const messages = await receive(t.receiver(queue, { receiveMode: "receiveAndDelete" }), batch.count);
  assert.ok(messages.every((message) => message.body.length === 1000));
});

test("every property arrives", async (t) => {
  const queue = await t.queue();
  const sent = {
    body: { nested: [1, "two", null] },
    messageId: "id-1",
    sessionId: "session-1",
    partitionKey: "session-1",
    contentType: "application/json",
    correlationId: "correlation-1",
    subject: "subject-1",
    to: "to-1",
    replyTo: "reply-1",
    replyToSessionId: "reply-session-1",
    timeToLive: HOUR,
  };
  await t.sender(queue).sendMessages(sent);
  const receiver = t.receiver(queue);
  for (const [message] of [await receiver.peekMessages(1), await receive(receiver)]) {
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(message[name], value, name);
    assert.equal(message.expiresAtUtc.getTime(), message.enqueuedTimeUtc.getTime() + HOUR);
  }
});

test("every type of application property arrives", async (t) => {
  const queue = await t.queue();
  const applicationProperties = {
    zero: 0,
    small: 7,
    negative: -7,
    large: 2 ** 40,
    largeNegative: -(2 ** 40),
    fraction: 1.5,
    text: "grüße",
    long: "x".repeat(1000),
    yes: true,
    no: false,
    nothing: null,
    time: new Date("2031-02-03T04:05:06.789Z"),
  };
  await t.sender(queue).sendMessages({ body: "x", applicationProperties });
  const receiver = t.receiver(queue);
  for (const [message] of [await receiver.peekMessages(1), await receive(receiver)]) {
    const found = { ...message.applicationProperties };
    found.time = new Date(found.time);
    assert.deepEqual(found, applicationProperties);
  }
});

test("every kind of body arrives", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  const plain = ["text", 7, 1.5, true, { a: [1, { b: null }] }, [1, 2], "", null];
  for (const body of plain) await sender.sendMessages({ body });
  await sender.sendMessages({ body: Buffer.from([0, 1, 255]) });
  const annotated = [
    ["value", { a: "b", n: 1 }],
    ["sequence", [1, "a", null]],
    ["data", Buffer.from("raw")],
  ];
  for (const [bodyType, body] of annotated) await sender.sendMessages({ bodyType, body });
  const messages = await receive(t.receiver(queue, { receiveMode: "receiveAndDelete" }), plain.length + 1 + 3);
  assert.deepEqual(bodies(messages).slice(0, plain.length), plain);
  assert.deepEqual([...messages[plain.length].body], [0, 1, 255]);
  annotated.forEach(([bodyType, body], i) => {
    const message = messages[plain.length + 1 + i];
    assert.equal(message._rawAmqpMessage.bodyType, bodyType);
    if (bodyType === "data") assert.equal(Buffer.from(message.body).toString(), body.toString());
    else assert.deepEqual(message.body, body);
  });
});

test("a large message arrives unchanged", async (t) => {
  const queue = await t.queue();
  const body = Buffer.from(range(255 * 1024).map((i) => i % 251));
  await t.sender(queue).sendMessages({ body });
  const receiver = t.receiver(queue);
  const [message] = await receive(receiver);
  assert.ok(Buffer.compare(Buffer.from(message.body), body) === 0);
  await receiver.completeMessage(message);
});

test("receive and delete removes what it delivers", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages([{ body: "a" }, { body: "b" }]);
  const receiver = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  const messages = await receive(receiver, 2);
  assert.deepEqual(bodies(messages), ["a", "b"]);
  assert.equal(messages[0].lockToken, undefined);
  await assertEmpty(t.receiver(queue));
});

test("a waiting receiver gets a message at once", async (t) => {
  const queue = await t.queue();
  const receiver = t.receiver(queue);
  await receiver.peekMessages(1);
  const waiting = receive(receiver);
  const sender = t.sender(queue);
  await sender.createMessageBatch(); // opens the link
  await sleep(200);
  await sender.sendMessages({ body: "now" });
  const sentAt = Date.now();
  assert.deepEqual(bodies(await waiting), ["now"]);
  assert.ok(Date.now() - sentAt < 1500, "the SDK itself lingers up to a second for more");
});

test("an empty receive is answered by the broker and the link stays usable", async (t) => {
  const queue = await t.queue();
  const receiver = t.receiver(queue);
  await assertEmpty(receiver);
  const began = Date.now();
  for (const _ of range(3)) assert.equal((await receiver.receiveMessages(1, { maxWaitTimeInMs: 100 })).length, 0);
  assert.ok(Date.now() - began < 900, `three empty receives of 100 ms took ${Date.now() - began} ms: drain unanswered?`);
  await t.sender(queue).sendMessages({ body: "x" });
  assert.deepEqual(bodies(await receive(receiver)), ["x"]);
});

test("a subscriber is handed every message and completes it by itself", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages(range(40).map((i) => ({ body: i })));
  const receiver = t.receiver(queue);
  const found = [];
  const errors = [];
  const subscription = receiver.subscribe(
    {
      processMessage: async (message) => void found.push(message.body),
      processError: async ({ error }) => void errors.push(error),
    },
    { maxConcurrentCalls: 8 },
  );
  await until(async () => found.length >= 40, "40 messages handed over");
  await until(async () => (await t.admin.getQueueRuntimeProperties(queue)).totalMessageCount === 0, "all completed");
  await subscription.close();
  assert.deepEqual(errors, []);
  assert.deepEqual(found.sort((a, b) => a - b), range(40));
});

test("messages can be iterated", async (t) => {
  const queue = await t.queue();
  await t.sender(queue).sendMessages(range(5).map((i) => ({ body: i })));
  const receiver = t.receiver(queue, { receiveMode: "receiveAndDelete" });
  const found = [];
  for await (const message of receiver.getMessageIterator()) {
    found.push(message.body);
    if (found.length === 5) break;
  }
  assert.deepEqual(found, range(5));
});

test("competing receivers share a queue without loss", async (t) => {
  const queue = await t.queue();
  const receivers = range(3).map(() => t.receiver(queue, { receiveMode: "receiveAndDelete" }));
  await t.sender(queue).sendMessages(range(60).map((i) => ({ body: i })));
  const found = [];
  await until(async () => {
    const batches = await Promise.all(receivers.map((r) => r.receiveMessages(5, { maxWaitTimeInMs: 300 })));
    found.push(...batches.flatMap(bodies));
    return found.length >= 60;
  }, "60 messages received");
  assert.deepEqual(found.sort((a, b) => a - b), range(60));
});

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

// ── Refusals ────────────────────────────────────────────────────────────────

test("an oversized message is refused and the sender goes on", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  await refused("MessageSizeExceeded", sender.sendMessages({ body: Buffer.alloc(300 * 1024) }));
  await sender.sendMessages({ body: "small" });
  assert.deepEqual(bodies(await receive(t.receiver(queue))), ["small"]);
});

test("a full queue refuses", async (t) => {
  const sender = t.sender(await t.queue({ maxSizeInMegabytes: 1 }));
  const fill = async () => {
    for (const _ of range(8)) await sender.sendMessages({ body: Buffer.alloc(200 * 1024) });
  };
  await refused("QuotaExceeded", fill());
});

test("a disabled queue refuses senders and receivers", async (t) => {
  const queue = await t.queue({ status: "Disabled" });
  await refused("MessagingEntityDisabled", t.sender(queue).sendMessages({ body: "x" }));
  await refused("MessagingEntityDisabled", t.receiver(queue).receiveMessages(1, { maxWaitTimeInMs: 1000 }));
});

test("an unknown queue is not found", async (t) => {
  await refused("MessagingEntityNotFound", t.sender("no-such-queue").sendMessages({ body: "x" }));
  const receiver = t.receiver("no-such-queue");
  await refused("MessagingEntityNotFound", receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 }));
});

test("a wrong key is refused", async (t) => {
  const sender = t.other(input.wrongKey).createSender(await t.queue());
  await refused("UnauthorizedAccess", sender.sendMessages({ body: "x" }));
});

test("an expired token is refused", async (t) => {
  const sender = t.other(input.expired).createSender(await t.queue());
  await refused("UnauthorizedAccess", sender.sendMessages({ body: "x" }));
});

test("a key that may only send cannot receive", async (t) => {
  const queue = await t.queue();
  const client = t.other(input.sendOnly);
  await client.createSender(queue).sendMessages({ body: "x" });
  await refused("UnauthorizedAccess", client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 1000 }));
});

// ── Paths, pings, transports ────────────────────────────────────────────────

test("paths may have slashes and 260 characters and compare without case", async (t) => {
  const unique = randomUUID().slice(0, 8);
  for (const path of [`contoso-${unique}/x-servicebus-transfer/0`, `Long-${unique}/`.padEnd(260, "x")]) {
    await t.queue({}, path);
    await t.sender(path.toUpperCase()).sendMessages({ body: "x" });
    const receiver = t.receiver(path.toLowerCase());
    assert.equal((await receiver.peekMessages(1)).length, 1);
    const [message] = await receive(receiver);
    await receiver.deadLetterMessage(message);
    assert.deepEqual(bodies(await receive(t.dead(path))), ["x"]);
  }
});

test("a ping is accepted and never seen", async (t) => {
  const queue = await t.queue();
  const ping = { body: "", contentType: "application/vnd.ms-servicebus-ping", timeToLive: 60_000 };
  await t.sender(queue).sendMessages(ping);
  const receiver = t.receiver(queue);
  assert.equal((await receiver.peekMessages(5)).length, 0);
  await assertEmpty(receiver);
});

async function roundTrip(t, client) {
  const queue = await t.queue();
  const large = Buffer.alloc(200_000, 7);
  await client.createSender(queue).sendMessages([{ body: "small" }, { body: large }]);
  const receiver = client.createReceiver(queue);
  const messages = await receive(receiver, 2);
  assert.equal(messages[0].body, "small");
  assert.equal(messages[1].body.length, large.length);
  for (const message of messages) await receiver.completeMessage(message);
}

test("messages travel over TLS", async (t) => {
  await roundTrip(t, t.other(input.connectionString.replace(/;UseDevelopmentEmulator=true/, "")));
});

test("messages travel over web sockets", async (t) => {
  const secure = input.connectionString.replace(/;UseDevelopmentEmulator=true/, "");
  await roundTrip(t, t.other(secure, { webSocketOptions: { webSocket: WebSocket } }));
});

// ── Administration ──────────────────────────────────────────────────────────

test("a queue is made, read, changed and removed", async (t) => {
  const settings = {
    lockDuration: "PT42S",
    maxSizeInMegabytes: 5120,
    maxDeliveryCount: 7,
    defaultMessageTimeToLive: "P1DT1H",
    deadLetteringOnMessageExpiration: true,
    requiresDuplicateDetection: true,
    duplicateDetectionHistoryTimeWindow: "PT5M",
    enableBatchedOperations: false,
    userMetadata: "<owner & co> grüße",
    autoDeleteOnIdle: "P2D",
  };
  const name = await t.queue(settings);
  const queue = await t.admin.getQueue(name);
  assert.equal(queue.name, name);
  for (const [setting, value] of Object.entries(settings)) assert.deepEqual(queue[setting], value, setting);
  queue.maxDeliveryCount = 9;
  queue.lockDuration = "PT13S";
  await t.admin.updateQueue(queue);
  const changed = await t.admin.getQueue(name);
  assert.equal(changed.maxDeliveryCount, 9);
  assert.equal(changed.lockDuration, "PT13S");
  assert.equal(changed.userMetadata, settings.userMetadata);
  assert.equal(await t.admin.queueExists(name), true);
  await t.admin.deleteQueue(name);
  assert.equal(await t.admin.queueExists(name), false);
});

test("administration errors have the codes of the SDK", async (t) => {
  const name = await t.queue();
  await refused("MessageEntityAlreadyExistsError", t.admin.createQueue(name));
  await refused("MessageEntityNotFoundError", t.admin.getQueue("no-such-queue"));
  await refused("MessageEntityNotFoundError", t.admin.deleteQueue("no-such-queue"));
  const error = await refused("ServiceError", t.admin.createQueue(`${name}-x`, { lockDuration: "PT10M" }));
  assert.equal(error.statusCode, 400);
});

test("more than one page of queues is listed", async (t) => {
  const prefix = `page-${randomUUID().slice(0, 6)}-`;
  const names = range(120).map((i) => `${prefix}${String(i).padStart(3, "0")}`);
  for (const name of names) await t.queue({}, name);
  const found = [];
  for await (const queue of t.admin.listQueues()) if (queue.name.startsWith(prefix)) found.push(queue.name);
  assert.deepEqual(found.sort(), names);
  const pages = [];
  for await (const page of t.admin.listQueues().byPage({ maxPageSize: 50 })) pages.push(page.length);
  assert.ok(pages.length >= 3 && pages.slice(0, -1).every((size) => size === 50), `page sizes ${pages}`);
  for (const name of names) await t.admin.deleteQueue(name);
});

test("counts are true in every state", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  await sender.sendMessages(range(4).map((i) => ({ body: i })));
  await sender.scheduleMessages({ body: "s" }, later(HOUR));
  const receiver = t.receiver(queue);
  const [first, second] = await receive(receiver, 2);
  await receiver.completeMessage(first);
  await receiver.deadLetterMessage(second);
  const counts = await t.admin.getQueueRuntimeProperties(queue);
  assert.equal(counts.activeMessageCount, 2);
  assert.equal(counts.scheduledMessageCount, 1);
  assert.equal(counts.deadLetterMessageCount, 1);
  assert.equal(counts.totalMessageCount, 4);
  assert.ok(counts.sizeInBytes > 0);
});

test("the namespace describes itself", async (t) => {
  assert.equal((await t.admin.getNamespaceProperties()).name, "contoso");
});

await main();
