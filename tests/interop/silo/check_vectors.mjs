// Checks this silo against the test vectors: node check_vectors.mjs FOLDER PROTOS
import { schemaState, sumView } from "./views.mjs";
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";

import { ColumnReader, ColumnWriter, fromOrdinal, ordinal } from "./columns.mjs";
import { load } from "./federation.mjs";
import * as sums from "./secure_sum.mjs";
import { LABEL, PACKAGE, approvalOf, digestOf } from "./signed_job.mjs";
import { GENESIS, extendDigest, pack, packSums, unpack } from "./trees.mjs";

const read = (name) => JSON.parse(readFileSync(join(process.argv[2], `${name}.json`), "utf8"));
const bytes = (digits) => Buffer.from(digits, "hex");
const hex = (data) => Buffer.from(data).toString("hex");
const same = (a, b) => assert.ok(a.length === b.length && a.every((v, i) => Object.is(v, b[i])), `${a} ${b}`);

const job = read("signed-job");
assert.equal(hex(digestOf({ statement: bytes(job.statement) })), job.job_digest);
assert.equal(hex(Buffer.concat([LABEL, bytes(job.statement)])), job.message);
assert.equal(hex(approvalOf({ statement: bytes(job.statement), certificate: "" })), job.approval);
assert.equal(bytes(job.nonce).toString("base64url"), job.job_id);
const definition = load(process.argv[3]);
const statement = definition[`${PACKAGE}.JobStatement`].deserialize(bytes(job.statement));
assert.equal(hex(statement.nonce), job.nonce);
assert.equal(hex(statement.spec), job.spec);
assert.equal(statement.federation, job.federation);
assert.equal(Number(statement.not_after.seconds), job.not_after);
assert.equal(statement.view_version, job.view_version);
const joint = read("joint-job");
const whole = definition[`${PACKAGE}.JobStatement`].deserialize(bytes(joint.statement));
assert.deepEqual(whole.sites.map(({ silo, nonce }) => ({ silo, nonce: hex(nonce) })), joint.sites);
const made = digestOf({ statement: Buffer.concat([Buffer.from("hedgerow/joint-nonce/v1\0"), bytes(joint.without_nonce)]) });
made[0] &= 0x7f;
assert.equal(hex(made.subarray(0, 16)), joint.nonce);
assert.equal(hex(whole.nonce), joint.nonce);
for (const [silo, message] of Object.entries(joint.messages))
  assert.equal(
    hex(Buffer.concat([Buffer.from(`hedgerow/joint-job/v1\0${silo}\0`), digestOf({ statement: bytes(joint.statement) })])),
    message,
  );
const acceptance = read("acceptance");
assert.equal(acceptance.job_digest, job.job_digest);

const columns = read("columns");
const first = [true, false, true];
for (const { values, bytes: expected } of columns.integers) {
  const out = new ColumnWriter([0xaa], first);
  out.plain([5, 2], 3);
  out.golomb(values);
  assert.equal(hex(out.done()), expected);
  const back = new ColumnReader(bytes(expected), 1, [{ n: values.length }], 3);
  same(back.plain(2, 3), [5, 2]);
  same(back.golomb(), values);
}
for (const { values, bytes: expected } of columns.floats) {
  const out = new ColumnWriter([0xaa], first);
  out.floats(values);
  assert.equal(hex(out.done()), expected);
  same(new ColumnReader(bytes(expected), 1, [{ n: values.length, float: true }], 3).floats(), values.map(Math.fround));
}
same(columns.ordinals.values.map(ordinal), columns.ordinals.ordinals);
same(columns.ordinals.ordinals.map(fromOrdinal), columns.ordinals.values.map(Math.fround));

for (const { name, trees, bytes: expected } of read("trees")) {
  const back = unpack(bytes(expected));
  assert.equal(back.length, trees.length, name);
  back.forEach((tree, k) => {
    for (const column of ["left", "right", "feature", "default_left"]) same(tree[column], trees[k][column]);
    const categorical = new Map(trees[k].categories);
    assert.deepEqual(tree.categories, categorical);
    assert.equal(tree.group, trees[k].group);
    same(tree.threshold, trees[k].threshold.map(Math.fround));
  });
  const plain = trees.every((tree) => !tree.categories.length && tree.cover.every((cover) => !cover));
  if (plain) assert.equal(hex(pack(trees)), expected, name);
}

const digests = read("tree-digest");
assert.equal(hex(GENESIS), digests.genesis);
let digest = GENESIS;
for (const added of digests.rounds) {
  digest = extendDigest(digest, { ...added, data: bytes(added.data) });
  assert.equal(hex(digest), added.digest);
}

for (const { values, bytes: expected } of read("score-sums")) {
  // JSON has no negative zero of its own, but "-0.0" is read as one.
  assert.equal(hex(packSums(values)), expected);
}

const { values, bytes: packed } = read("residues").find((given) => given.ring_bits === 64);
assert.equal(hex(sums.packResidues(values.map(BigInt))), packed);

const exact = read("exact-sums");
same(sums.exactParts(...exact.columns), exact.residues.map(BigInt));

const secure = read("secure-sum");
assert.equal(hex(sums.fields("ash", bytes("00ff"), 0, -12, "")), secure.fields.encoded);
const at = { round: 0, level: 0, pass: 0 };
assert.equal(sums.sessionOf(secure.job_id, secure.attempt, at), secure.session);
const { session, roster, groups } = secure;
const offers = {};
const keys = {};
for (const silo of secure.silos) {
  keys[silo.silo] = new sums.KeyPair(bytes(silo.private_key));
  assert.equal(hex(keys[silo.silo].public), silo.public_key);
  const statement = sums.keyStatement(session, roster, groups, secure.parameters, silo.silo, keys[silo.silo].public);
  assert.equal(hex(statement), silo.statement);
  offers[silo.silo] = { public_key: keys[silo.silo].public, signature: bytes(silo.signature) };
}
const { companions } = secure;
const own = keys[companions.silo].public;
const told = sums.keyStatement(session, roster, groups, secure.parameters, companions.silo, own, companions.companions);
assert.equal(hex(told), companions.statement);
const keyDigest = sums.keyDigest(session, offers);
assert.equal(hex(keyDigest), secure.key_digest);
const { view } = secure;
const state = schemaState(view.schema);
assert.equal(hex(state), view.state);
assert.equal(hex(sumView(bytes(view.job), "sum", at, 3, state)), view.view);
const context = sums.contextOf(session, 0, bytes(view.view));
assert.equal(hex(context), secure.context);
assert.equal(hex(keys.ash.root(keys.birch.public, keyDigest)), secure.root_ash_birch);
const { box } = secure;
const boxKey = sums.boxKey(keys.birch.root(keys.ash.public, keyDigest), box.sender, box.receiver);
assert.equal(hex(boxKey), box.key);
const associated = sums.boxContext(session, 0, 1, box.sender, box.receiver);
assert.equal(hex(associated), box.associated);
const fixed = sums.shareCommitment(session, 0, box.sender, box.receiver, bytes(box.plaintext));
assert.equal(hex(fixed), box.commitment);
assert.equal(hex(sums.seal(boxKey, bytes(box.plaintext), associated, bytes(box.nonce))), box.bytes);
assert.equal(hex(sums.openBox(boxKey, bytes(box.bytes), associated)), box.plaintext);
assert.equal(hex(sums.keystream(bytes(secure.keystream.key), 40)), secure.keystream.bytes);
assert.equal(hex(sums.setStatement(keyDigest, context, roster, roster)), secure.set_statement);
const seeds = [];
const total = [0n, 0n, 0n];
secure.silos.forEach((silo, me) => {
  const peers = roster.filter((peer) => peer !== silo.silo);
  const pairs = peers.map((peer) => sums.pairSeed(keys[silo.silo].root(keys[peer].public, keyDigest), context));
  assert.deepEqual(pairs.map(hex), silo.pair_seeds);
  const secret = bytes(silo.self_mask);
  assert.equal(hex(sums.commitmentOf(secret, context)), silo.commitment);
  const own = sums.selfSeed(secret, context);
  assert.equal(hex(own), silo.self_seed);
  const { threshold } = secure;
  for (const lowest of [0, roster.length - threshold]) {
    const some = silo.shares.map((share, k) => [k, bytes(share)]).slice(lowest, lowest + threshold);
    assert.equal(hex(sums.restore(Object.fromEntries(some))), silo.self_mask);
  }
  const mine = sums.split(BigInt(`0x${Buffer.from(secret).reverse().toString("hex")}`), threshold, roster.length);
  assert.equal(hex(sums.restore(Object.fromEntries(mine.entries()))), silo.self_mask);
  const masked = sums.masked(silo.values.map(BigInt), [...pairs.slice(me), own], pairs.slice(0, me));
  same(masked, silo.masked.map(BigInt));
  masked.forEach((v, i) => (total[i] = (total[i] + v) % 2n ** 64n));
  seeds.push(own);
});
same(sums.masked(total, [], seeds), secure.sum.map(BigInt));
assert.equal(sums.quotient(1n, 3n), 1 / 3);
assert.equal(sums.quotient(-7n * 10n ** 60n, 11n * 10n ** 50n), -7e10 / 11);
console.log("all vectors agree");
