// Sending and receiving: what is sent arrives, in order, unchanged.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { HOUR, assertEmpty, bodies, range, receive, test, until } from "./harness.mjs";

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
  assert.equal(batch.maxSizeInBytes, 1024 * 1024);
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
