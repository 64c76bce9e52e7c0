// Refusals, paths, pings, transports and administration.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import WebSocket from "ws";
import { HOUR, assertEmpty, bodies, input, later, range, receive, refused, test } from "./harness.mjs";

// ── Refusals ────────────────────────────────────────────────────────────────

test("an oversized message is refused and the sender goes on", async (t) => {
  const queue = await t.queue();
  const sender = t.sender(queue);
  await refused("MessageSizeExceeded", sender.sendMessages({ body: Buffer.alloc(1100 * 1024) }));
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
