// Administration of topics, subscriptions and rules, and the rule manager.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { assertEmpty, bodies, range, receive, refused, test } from "./harness.mjs";

async function subscribed(t, settings = {}) {
  const topic = `js-topic-${randomUUID().slice(0, 12)}`;
  await t.admin.createTopic(topic);
  await t.admin.createSubscription(topic, "s", settings);
  return topic;
}

test("a topic is made, read, changed, listed and removed", async (t) => {
  const settings = {
    maxSizeInMegabytes: 5120,
    defaultMessageTimeToLive: "P1D",
    requiresDuplicateDetection: true,
    duplicateDetectionHistoryTimeWindow: "PT5M",
    enableBatchedOperations: false,
    enablePartitioning: true,
    supportOrdering: false,
    userMetadata: "<owner & co> grüße",
    autoDeleteOnIdle: "P2D",
  };
  const name = `js/topic-${randomUUID().slice(0, 12)}`;
  await t.admin.createTopic(name, settings);
  const topic = await t.admin.getTopic(name);
  assert.equal(topic.name, name);
  for (const [setting, value] of Object.entries(settings)) assert.deepEqual(topic[setting], value, setting);
  topic.maxSizeInMegabytes = 1024;
  await t.admin.updateTopic(topic);
  assert.equal((await t.admin.getTopic(name)).maxSizeInMegabytes, 1024);
  const names = [];
  for await (const found of t.admin.listTopics()) names.push(found.name);
  assert.ok(names.includes(name));
  assert.equal((await t.admin.getTopicRuntimeProperties(name)).subscriptionCount, 0);
  await refused("MessageEntityAlreadyExistsError", t.admin.createTopic(name));
  await refused("MessageEntityAlreadyExistsError", t.admin.createQueue(name));
  await t.admin.deleteTopic(name);
  assert.equal(await t.admin.topicExists(name), false);
});

test("a subscription is made, read, changed and removed", async (t) => {
  const queue = await t.queue();
  const settings = {
    lockDuration: "PT42S",
    maxDeliveryCount: 7,
    defaultMessageTimeToLive: "P1D",
    deadLetteringOnMessageExpiration: true,
    deadLetteringOnFilterEvaluationExceptions: false,
    enableBatchedOperations: false,
    userMetadata: "<owner & co> grüße",
    autoDeleteOnIdle: "P2D",
  };
  const topic = await subscribed(t, settings);
  const subscription = await t.admin.getSubscription(topic, "s");
  assert.equal(subscription.topicName, topic);
  assert.equal(subscription.subscriptionName, "s");
  for (const [setting, value] of Object.entries(settings)) assert.deepEqual(subscription[setting], value, setting);
  subscription.forwardTo = queue;
  await t.admin.updateSubscription(subscription);
  assert.ok((await t.admin.getSubscription(topic, "s")).forwardTo.endsWith(`/${queue}`));
  const counts = await t.admin.getSubscriptionRuntimeProperties(topic, "s");
  assert.equal(counts.activeMessageCount, 0);
  const names = [];
  for await (const found of t.admin.listSubscriptions(topic)) names.push(found.subscriptionName);
  assert.deepEqual(names, ["s"]);
  await t.admin.deleteSubscription(topic, "s");
  assert.equal(await t.admin.subscriptionExists(topic, "s"), false);
  await refused("MessageEntityNotFoundError", t.admin.getSubscription(topic, "s"));
});

test("rules are made, read, changed, listed and removed", async (t) => {
  const topic = await subscribed(t);
  const sqlParameters = { "@text": "x <&>", "@number": 5, "@truth": true };
  await t.admin.createRule(topic, "s", "sql", { sqlExpression: "a = @text", sqlParameters }, { sqlExpression: "SET b = 1" });
  const sql = await t.admin.getRule(topic, "s", "sql");
  assert.equal(sql.name, "sql");
  assert.equal(sql.filter.sqlExpression, "a = @text");
  assert.deepEqual(sql.filter.sqlParameters, sqlParameters);
  assert.equal(sql.action.sqlExpression, "SET b = 1");
  const applicationProperties = { color: "red", count: 3, when: new Date("2026-02-03T04:05:06Z") };
  await t.admin.createRule(topic, "s", "correlation", { subject: "l", applicationProperties });
  const correlation = await t.admin.getRule(topic, "s", "correlation");
  assert.equal(correlation.filter.subject, "l");
  assert.deepEqual(correlation.filter.applicationProperties, applicationProperties);
  const changed = { ...sql, filter: { sqlExpression: "a = 2" } };
  await t.admin.updateRule(topic, "s", changed);
  assert.equal((await t.admin.getRule(topic, "s", "sql")).filter.sqlExpression, "a = 2");
  const names = [];
  for await (const rule of t.admin.listRules(topic, "s")) names.push(rule.name);
  assert.deepEqual(names, ["$Default", "correlation", "sql"]);
  await t.admin.deleteRule(topic, "s", "$Default");
  assert.equal(await t.admin.ruleExists(topic, "s", "$Default"), false);
  const error = await refused("ServiceError", t.admin.createRule(topic, "s", "bad", { sqlExpression: "a = " }));
  assert.equal(error.statusCode, 400);
});

test("a subscription is made with its first rule", async (t) => {
  const topic = `js-topic-${randomUUID().slice(0, 12)}`;
  await t.admin.createTopic(topic);
  const defaultRuleOptions = { name: "red", filter: { sqlExpression: "color = 'red'" } };
  await t.admin.createSubscription(topic, "s", { defaultRuleOptions });
  const rules = [];
  for await (const rule of t.admin.listRules(topic, "s")) rules.push(rule);
  assert.deepEqual(rules.map((rule) => rule.name), ["red"]);
  assert.equal(rules[0].filter.sqlExpression, "color = 'red'");
});

test("the rule manager creates, lists and deletes rules", async (t) => {
  const topic = await subscribed(t);
  const manager = t.use(t.client.createRuleManager(topic, "s"));
  const applicationProperties = { color: "red", count: 3, ratio: 1.5, truth: true };
  await manager.createRule("correlation", { correlationId: "c", subject: "l", applicationProperties });
  await manager.createRule("sql", { sqlExpression: "a = 1" }, { sqlExpression: "SET b = 2" });
  const rules = {};
  for await (const rule of manager.listRules()) rules[rule.name] = rule;
  assert.deepEqual(Object.keys(rules).sort(), ["$Default", "correlation", "sql"]);
  assert.equal(rules.correlation.filter.correlationId, "c");
  assert.equal(rules.correlation.filter.subject, "l");
  assert.deepEqual(rules.correlation.filter.applicationProperties, applicationProperties);
  assert.equal(rules.sql.filter.sqlExpression, "a = 1");
  assert.equal(rules.sql.action.sqlExpression, "SET b = 2");
  await refused("MessagingEntityAlreadyExists", manager.createRule("sql", { sqlExpression: "a = 2" }));
  await refused("MessagingEntityNotFound", manager.deleteRule("other"));
  await manager.deleteRule("$Default");
  assert.equal(await t.admin.ruleExists(topic, "s", "$Default"), false);
  assert.equal((await t.admin.getRule(topic, "s", "correlation")).filter.correlationId, "c");
});

test("more than one page of rules is listed by the rule manager", async (t) => {
  const topic = await subscribed(t);
  const manager = t.use(t.client.createRuleManager(topic, "s"));
  const names = range(130).map((i) => `r${String(i).padStart(3, "0")}`);
  for (const name of names) await manager.createRule(name, { subject: name });
  const found = [];
  for await (const rule of manager.listRules()) found.push(rule.name);
  assert.deepEqual(found, ["$Default", ...names]);
});

test("rules of the rule manager decide about the next message", async (t) => {
  const topic = await subscribed(t);
  const manager = t.use(t.client.createRuleManager(topic, "s"));
  await manager.deleteRule("$Default");
  await manager.createRule("big", { sqlExpression: "amount > 10" }, { sqlExpression: "SET seen = TRUE" });
  await manager.createRule("red", { applicationProperties: { color: "red" } });
  const message = (body, applicationProperties) => ({ body, applicationProperties });
  await t.sender(topic).sendMessages([
    message("both", { amount: 11, color: "red" }),
    message("none", { amount: 10, color: "blue" }),
    message("red", { color: "red" }),
    message("", { amount: 12 }),
  ]);
  const receiver = t.use(t.client.createReceiver(topic, "s", { receiveMode: "receiveAndDelete" }));
  const found = await receive(receiver, 4);
  assert.deepEqual(bodies(found).sort(), ["", "both", "both", "red"]);
  assert.equal(found.filter((one) => one.applicationProperties.seen === true).length, 2);
  await assertEmpty(receiver);
});

test("a message whose filter divides by zero is dead-lettered where the setting says so", async (t) => {
  const topic = await subscribed(t);
  await t.admin.createSubscription(topic, "quiet", { deadLetteringOnFilterEvaluationExceptions: false });
  for (const name of ["s", "quiet"]) {
    const manager = t.use(t.client.createRuleManager(topic, name));
    await manager.deleteRule("$Default");
    await manager.createRule("ratio", { sqlExpression: "100 / n > 1" });
  }
  await t.sender(topic).sendMessages({ body: "zero", applicationProperties: { n: 0 } });
  const [letter] = await receive(t.use(t.client.createReceiver(topic, "s", { subQueueType: "deadLetter" })));
  assert.deepEqual([letter.body, letter.deadLetterReason], ["zero", "FilterEvaluationException"]);
  const counts = await t.admin.getSubscriptionRuntimeProperties(topic, "quiet");
  assert.deepEqual([counts.activeMessageCount, counts.deadLetterMessageCount], [0, 0]);
});
