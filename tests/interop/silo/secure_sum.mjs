// Secure sums, the silo's side: docs/wire.md, "Secure sums".
import { sumView } from "./views.mjs";
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  createPrivateKey,
  createPublicKey,
  diffieHellman,
  randomBytes,
} from "node:crypto";

import { signerOf } from "./signed_job.mjs";

const PRIME = 2n ** 255n - 19n;
const RING = 2n ** 64n;
const LEAST_SILOS = 3;
const REPEATS = 256;

/** Encodes fields: strings, Buffers and integers. */
export function fields(...values) {
  return Buffer.concat(
    values.flatMap((value) => {
      const letter = Buffer.isBuffer(value) ? "b" : typeof value === "string" ? "s" : "i";
      const raw = letter === "b" ? value : Buffer.from(String(value));
      const length = Buffer.alloc(4);
      length.writeUInt32BE(raw.length);
      return [Buffer.from(letter), length, raw];
    }),
  );
}

const sha256 = (data) => createHash("sha256").update(data).digest();
const hmac = (key, data) => createHmac("sha256", key).update(data).digest();

/** HKDF-Extract, and HKDF-Expand to 32 bytes (one block). */
export const extract = (salt, secret) => hmac(salt, secret);
export const expand = (root, info) => hmac(root, Buffer.concat([info, Buffer.from([1])]));

const PKCS8 = Buffer.from("302e020100300506032b656e04220420", "hex");
const SPKI = Buffer.from("302a300506032b656e032100", "hex");

export class KeyPair {
  constructor(secret = randomBytes(32)) {
    const der = Buffer.concat([PKCS8, secret]);
    this.private = createPrivateKey({ key: der, format: "der", type: "pkcs8" });
    const spki = createPublicKey(this.private).export({ format: "der", type: "spki" });
    this.public = spki.subarray(-32);
  }

  /** Root shared with the owner of a public key; throws for a key of low order. */
  root(peer, salt) {
    const der = Buffer.concat([SPKI, peer]);
    const publicKey = createPublicKey({ key: der, format: "der", type: "spki" });
    return extract(salt, diffieHellman({ privateKey: this.private, publicKey }));
  }
}

export const sessionOf = (jobId, attempt, at) =>
  `${jobId}/${attempt}/${at.round}.${at.level}.${at.pass}`;

export function keyStatement(session, roster, groups, parameters, silo, publicKey, companions = []) {
  const statement = fields(
    "hedgerow secure sum keys v2",
    session,
    fields(...roster),
    fields(...groups.map((group) => fields(...group))),
    parameters.threshold,
    parameters.batch,
    parameters.least_silos,
    parameters.dropout_recovery,
    parameters.blind_coordinator,
    silo,
    publicKey,
  );
  return companions.length
    ? fields("hedgerow secure sum companions v1", statement, ...companions)
    : statement;
}

/** Digest of key offers {silo: {public_key, signature}}. */
export const keyDigest = (session, offers) =>
  sha256(
    fields(
      session,
      ...sorted(Object.keys(offers)).flatMap((silo) => [
        silo,
        offers[silo].public_key,
        offers[silo].signature,
      ]),
    ),
  );

export const contextOf = (session, number, view) =>
  fields("hedgerow secure sum v2", session, number, view);
export const shareCommitment = (session, number, dealer, receiver, share) =>
  sha256(fields("hedgerow share commitment v1", session, number, dealer, receiver, share)).subarray(0, 16);
export const pairSeed = (root, context) => expand(root, fields("mask", context));
export const selfSeed = (secret, context) =>
  expand(extract(Buffer.from("hedgerow self mask"), secret), fields("self", context));
export const commitmentOf = (secret, context) =>
  sha256(fields("hedgerow self mask commitment", secret, context));
export const setStatement = (digest, context, participants, present) =>
  fields(
    "hedgerow secure sum set v1",
    digest,
    context,
    fields(...participants),
    fields(...present),
  );

/** First bytes of the stream of a seed. */
export function keystream(seed, nBytes) {
  const counter = Buffer.alloc(16);
  counter[15] = 2;
  return createCipheriv("aes-256-ctr", seed, counter).update(Buffer.alloc(nBytes));
}

/** Values (BigInt, modulo 2^64) plus and minus the streams of seeds. */
export function masked(values, add, subtract) {
  const out = [...values];
  for (const [seeds, sign] of [[add, 1n], [subtract, -1n]]) {
    for (const seed of seeds) {
      const stream = keystream(seed, 8 * out.length);
      out.forEach((v, i) => (out[i] = (v + sign * stream.readBigUInt64LE(8 * i) + RING) % RING));
    }
  }
  return out;
}

export function packResidues(values) {
  const data = Buffer.alloc(8 * values.length);
  values.forEach((v, i) => data.writeBigUInt64LE(v, 8 * i));
  return data;
}

export const readResidues = (data) =>
  Array.from({ length: data.length / 8 }, (_, i) => data.readBigUInt64LE(8 * i));

const little = (value) => Buffer.from(value.toString(16).padStart(64, "0"), "hex").reverse();
const integer = (raw) => BigInt(`0x${Buffer.from(raw).reverse().toString("hex")}`);

function randomElement() {
  for (;;) {
    const value = integer(randomBytes(32)) % 2n ** 255n;
    if (value < PRIME) return value;
  }
}

/** Shares of a secret, 32 bytes each, for members 0, 1 ... */
export function split(secret, threshold, n) {
  const polynomial = [secret];
  while (polynomial.length < threshold) polynomial.push(randomElement());
  return Array.from({ length: n }, (_, k) =>
    little(polynomial.reduceRight((sum, c) => (sum * BigInt(k + 1) + c) % PRIME, 0n)),
  );
}

/** Secret of shares {member's number: share}; for tests. */
export function restore(shares) {
  const points = Object.keys(shares).map((k) => BigInt(k) + 1n);
  let secret = 0n;
  for (const x of points) {
    let above = 1n;
    let below = 1n;
    for (const other of points) {
      if (other === x) continue;
      above = (above * other) % PRIME;
      below = (below * (other - x + PRIME)) % PRIME;
    }
    secret += integer(shares[x - 1n]) * above * power(below, PRIME - 2n);
  }
  return little(secret % PRIME);
}

function power(base, exponent) {
  let result = 1n;
  for (let e = exponent; e > 0n; e >>= 1n) {
    if (e & 1n) result = (result * base) % PRIME;
    base = (base * base) % PRIME;
  }
  return result;
}

export const boxKey = (root, sender, receiver) => expand(root, fields("box", sender, receiver));
export const boxContext = (session, first, count, sender, receiver) =>
  fields("hedgerow shares v1", session, first, count, sender, receiver);

export function seal(key, plaintext, associated, nonce = randomBytes(12)) {
  const cipher = createCipheriv("chacha20-poly1305", key, nonce, { authTagLength: 16 });
  cipher.setAAD(associated, { plaintextLength: plaintext.length });
  const text = Buffer.concat([cipher.update(plaintext), cipher.final()]);
  return Buffer.concat([nonce, text, cipher.getAuthTag()]);
}

export function openBox(key, box, associated) {
  const decipher = createDecipheriv("chacha20-poly1305", key, box.subarray(0, 12), {
    authTagLength: 16,
  });
  decipher.setAuthTag(box.subarray(-16));
  decipher.setAAD(associated, { plaintextLength: box.length - 28 });
  return Buffer.concat([decipher.update(box.subarray(12, -16)), decipher.final()]);
}

/** Silo names by code point (JavaScript sorts by UTF-16 unit). */
export const sorted = (names) =>
  [...names].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));

const same = (a, b) => a.length === b.length && a.every((name, i) => name === b[i]);

/** Raises unless a silo signed a message under the federation's CA. */
export function verify(identity, silo, pem, message, signature) {
  const { role, name } = signerOf(identity, pem, message, signature);
  if (role !== "silo" || name !== silo) throw new Error(`${role} ${name} signed for ${silo}`);
}

/** A setup and its sums, over one 64-bit ring with dropout recovery, and a batch of one sum. */
export class SecureSums {
  /**
   * @param {object} link has exchange(kind, step, place, family, parts), passed(reason), and
   *   durable recall() and remember(set)
   * @param {object} identity
   * @param {{jobId: string, attempt: number, digest: Buffer, roster: string[],
   *   groups: string[][], leastSilos: number}} job
   */
  constructor(link, identity, job) {
    this.link = link;
    this.identity = identity;
    this.job = job;
    this.number = 0;
    this.parameters = {
      threshold: 0,
      batch: 1,
      least_silos: job.leastSilos,
      dropout_recovery: 1,
      blind_coordinator: 0,
    };
  }

  async #one(kind, step, at, part) {
    const parts = await this.link.exchange(kind, step, at, "masking", [part]);
    return parts[0][parts[0].part];
  }

  /** Throws unless a set is a union of whole groups: it would tell silos apart. */
  #checkWhole(silos) {
    const whole = this.job.groups.filter((group) => group.every((silo) => silos.includes(silo)));
    if (whole.flat().length !== silos.length) throw new Error("a set that is no union of groups");
  }

  async setup(at) {
    const { roster, groups, jobId, attempt } = this.job;
    const me = this.identity.silo;
    this.session = sessionOf(jobId, attempt, at);
    this.key = new KeyPair();
    const statement = (silo, key, companions) =>
      keyStatement(this.session, roster, groups, this.parameters, silo, key, companions);
    const offer = {
      public_key: this.key.public,
      certificate: this.identity.certificate,
      signature: this.identity.sign(statement(me, this.key.public)),
    };
    const parts = await this.link.exchange("EXCHANGE_KIND_KEYS", "sum-keys", at, "masking", [
      { key: offer },
    ]);
    const offers = Object.assign({}, ...parts.map((part) => part.roster.offers));
    const members = sorted(Object.keys(offers));
    const own = offers[me];
    if (!own || !["public_key", "certificate", "signature"].every((f) => own[f].equals(offer[f])))
      throw new Error("the group has another key for this silo");
    if (!members.every((silo) => roster.includes(silo))) throw new Error("a silo off the roster");
    for (const silo of members) {
      const theirs = offers[silo];
      const message = statement(silo, theirs.public_key, theirs.companions ?? []);
      verify(this.identity, silo, theirs.certificate, message, theirs.signature);
    }
    this.threshold = Math.floor((2 * members.length) / 3) + 1;
    this.least = Math.max(this.parameters.least_silos, this.threshold, LEAST_SILOS);
    this.#atLeast(members);
    this.members = members;
    this.participants = members;
    this.certificates = Object.fromEntries(members.map((s) => [s, offers[s].certificate]));
    this.digest = keyDigest(this.session, offers);
    this.roots = {};
    for (const silo of members)
      if (silo !== me) this.roots[silo] = this.key.root(offers[silo].public_key, this.digest);
  }

  #atLeast(silos) {
    if (silos.length < this.least)
      throw new Error(`expected at least ${this.least} silos, received ${silos.length}`);
    this.#checkWhole(silos);
  }

  async #deal(name, at) {
    const me = this.identity.silo;
    this.secret = randomElement();
    const dealt = split(this.secret, this.threshold, this.members.length);
    const boxes = {};
    this.shares = {};
    this.members.forEach((silo, k) => {
      if (!this.participants.includes(silo)) return;
      const commitments = shareCommitment(this.session, this.number, me, silo, dealt[k]);
      const context = boxContext(this.session, this.number, 1, me, silo);
      if (silo === me) this.shares[silo] = dealt[k];
      const box = silo === me ? Buffer.alloc(0) : seal(boxKey(this.roots[silo], me, silo), dealt[k], context);
      boxes[silo] = { box, commitments };
    });
    const parts = await this.link.exchange("EXCHANGE_KIND_SHARES", `${name}-shares`, at, "masking", [
      { shares: { boxes } },
    ]);
    const received = Object.assign({}, ...parts.map((part) => part.shares.boxes));
    const present = sorted([me, ...Object.keys(received)]);
    if (!present.every((silo) => this.participants.includes(silo)))
      throw new Error("shares of a silo that takes no part");
    this.#atLeast(present);
    for (const [silo, { box, commitments }] of Object.entries(received)) {
      const context = boxContext(this.session, this.number, 1, silo, me);
      this.shares[silo] = openBox(boxKey(this.roots[silo], silo, me), box, context);
      if (this.shares[silo].length !== 32) throw new Error(`expected one share of ${silo}`);
      if (!shareCommitment(this.session, this.number, silo, me, this.shares[silo]).equals(commitments))
        throw new Error(`not the share that ${silo} has committed to`);
    }
    this.participants = present;
  }

  /** Adds a vector of BigInt residues to a sum; returns {values, present}. */
  async sum(name, kind, at, values, state) {
    await this.#deal(name, at);
    const me = this.identity.silo;
    const participants = this.participants;
    const view = sumView(this.job.digest, name, at, values.length, state);
    const context = contextOf(this.session, this.number, view);
    this.number += 1;
    const seed = (silo) => pairSeed(this.roots[silo], context);
    const place = participants.indexOf(me);
    const secret = little(this.secret);
    const add = [...participants.slice(place + 1).map(seed), selfSeed(secret, context)];
    const data = packResidues(masked(values, add, participants.slice(0, place).map(seed)));
    const statement = (set) => setStatement(this.digest, context, participants, set);
    const bound = this.link.recall() ?? [];
    const willing = !bound.length || same(bound, participants);
    let reply = await this.#one(kind, `${name}-masked`, at, {
      masked: {
        vector: { ring_bits: 64, n_values: values.length, data },
        commitment: commitmentOf(secret, context),
        signature: willing ? this.identity.sign(statement(participants)) : Buffer.alloc(0),
        bound,
        tag: view,
      },
    });
    let endorsed = willing ? participants : null;
    let agreed = null;
    let repeats = 0;
    const again = () => ({ ...at, pass: at.pass * REPEATS + repeats });
    while (!agreed || !same(reply.present, agreed)) {
      const set = reply.present;
      if (!set.includes(me)) throw this.link.passed("the sum goes on without this silo");
      this.#atLeast(set);
      if (!same(set, sorted(new Set(set))) || !set.every((s) => (endorsed ?? participants).includes(s)))
        throw new Error("a set that does not only shrink");
      if (bound.length && !same(bound, set)) throw new Error("it was unmasked over another set");
      endorsed = set;
      if (!Object.keys(reply.signatures).length) {
        reply = await this.#one("EXCHANGE_KIND_SIGNATURES", `${name}-agree`, again(), {
          signature: { signature: this.identity.sign(statement(set)) },
        });
        repeats += 1;
        if (!same(reply.present, set)) continue;
      }
      this.#verify(statement(set), reply);
      agreed = set;
      if (!same(set, participants)) {
        const lost = participants.filter((silo) => !set.includes(silo));
        const seeds = Object.fromEntries(lost.map((silo) => [silo, seed(silo)]));
        reply = await this.#one("EXCHANGE_KIND_SIGNATURES", `${name}-seeds`, again(), {
          seeds: { seeds },
        });
      }
    }
    this.link.remember(agreed);
    const shares = Object.fromEntries(agreed.map((silo) => [silo, this.shares[silo]]));
    this.participants = agreed;
    const total = await this.#one(kind, `${name}-unmask`, at, { unmasking: { shares } });
    return { values: readResidues(total.vector.data), present: total.present };
  }

  #verify(statement, reply) {
    let valid = 0;
    for (const silo of reply.present) {
      try {
        verify(this.identity, silo, this.certificates[silo], statement, reply.signatures[silo]);
        valid += 1;
      } catch {
        continue;
      }
    }
    const needed = Math.max(this.threshold, LEAST_SILOS);
    if (valid < needed) throw new Error(`expected ${needed} signatures, received ${valid}`);
  }
}

// --- exact sums and the mean label ---

const LIMBS = 9;
const LIMB_BITS = 30n;
const FRACTION_BITS = 140;

/** A number as an integer multiple of 2^-140, ties to even. */
function stepsOf(value) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  const bits = view.getBigUint64(0);
  const exponent = Number((bits >> 52n) & 0x7ffn);
  let mantissa = bits & (2n ** 52n - 1n);
  if (exponent) mantissa |= 2n ** 52n;
  const shift = Math.max(exponent, 1) - 1075 + FRACTION_BITS;
  let steps;
  if (shift >= 0) steps = mantissa << BigInt(shift);
  else {
    const down = BigInt(-shift);
    const rest = mantissa & ((1n << down) - 1n);
    const half = 1n << (down - 1n);
    steps = mantissa >> down;
    if (rest > half || (rest === half && steps & 1n)) steps += 1n;
  }
  return value < 0 ? -steps : steps;
}

/** Residues of the exact sums of columns. */
export function exactParts(...columns) {
  return columns.flatMap((column) => {
    const sums = Array(LIMBS).fill(0n);
    for (const value of column) {
      const steps = stepsOf(value);
      const sign = steps < 0n ? -1n : 1n;
      for (let k = 0; k < LIMBS; k += 1)
        sums[k] += sign * (((sign * steps) >> (LIMB_BITS * BigInt(k))) & (2n ** LIMB_BITS - 1n));
    }
    return sums.map((sum) => BigInt.asUintN(64, sum));
  });
}

/** Sums of columns from the total's residues, in steps of 2^-140. */
export function exactSums(residues) {
  const sums = [];
  for (let at = 0; at < residues.length; at += LIMBS) {
    let sum = 0n;
    for (let k = 0; k < LIMBS; k += 1)
      sum += BigInt.asIntN(64, residues[at + k]) * 2n ** (LIMB_BITS * BigInt(k));
    sums.push(sum);
  }
  return sums;
}

/** Quotient of two integers as the nearest double. */
export function quotient(above, below) {
  const sign = above < 0n ? -1 : 1;
  let n = above < 0n ? -above : above;
  if (n === 0n) return 0;
  let exponent = 0;
  const length = (v) => v.toString(2).length;
  const shift = 55 - (length(n) - length(below)); // 55 or 56 bits and a sticky one
  if (shift > 0) n <<= BigInt(shift);
  else below <<= BigInt(-shift);
  exponent = -shift;
  let whole = (n / below) * 2n;
  if (n % below) whole |= 1n;
  const extra = length(whole) - 53;
  const half = 1n << BigInt(extra - 1);
  const rest = whole & ((1n << BigInt(extra)) - 1n);
  let mantissa = whole >> BigInt(extra);
  if (rest > half || (rest === half && mantissa & 1n)) mantissa += 1n;
  return sign * Number(mantissa) * 2 ** (exponent - 1 + extra);
}
