// Packed trees, packed sums and the running digest of blocks: docs/wire.md, "Bagging".
import { createHash } from "node:crypto";

import { ColumnReader, ColumnWriter, fromOrdinal, ordinal, unzigzag, zigzag } from "./columns.mjs";

const STATISTICS = 1;
const DEFAULTS = 2;
const CATEGORIES = 4;
const SCATTERED = 8;
const ONE = ordinal(1.0);

/**
 * @typedef {object} Tree
 * @property {number} group class index
 * @property {number[]} left child of each node, -1 at leaves
 * @property {number[]} right
 * @property {number[]} feature
 * @property {number[]} threshold of a split, or the value of a leaf
 * @property {boolean[]} default_left
 * @property {Map<number, number[]>} [categories] node to the codes that go right
 */

function leb128(out, ...numbers) {
  for (let number of numbers) {
    for (; number > 0x7f; number = Math.floor(number / 128)) out.push((number % 128) | 0x80);
    out.push(number);
  }
}

const bitsOf = (n) => (n > 1 ? Math.floor(Math.log2(n - 1)) + 1 : 0);

/** Packs trees without categorical splits and without statistics. */
export function pack(trees) {
  if (!trees.length) return Buffer.alloc(0);
  const splits = [];
  const leaves = [];
  const first = [];
  let scattered = false;
  for (const tree of trees) {
    let rank = 0;
    tree.left.forEach((left, node) => {
      first.push(left < 0);
      if (left < 0) {
        leaves.push(tree.threshold[node]);
        return;
      }
      const lefts = left - (1 + 2 * rank);
      const rights = tree.right[node] - left - 1;
      scattered ||= lefts !== 0 || rights !== 0;
      rank += 1;
      const threshold = ordinal(tree.threshold[node]);
      const missing = Number(tree.default_left[node]);
      splits.push({ lefts, rights, missing, feature: tree.feature[node], threshold });
    });
  }
  const key = (split) => split.feature * 2 ** 32 + split.threshold;
  const table = [...new Set(splits.map(key))].sort((a, b) => a - b);
  const place = new Map(table.map((pair, index) => [pair, index]));
  const missing = splits.map((split) => split.missing);
  const flags = (missing.includes(1) ? DEFAULTS : 0) | (scattered ? SCATTERED : 0);
  const head = [1, flags];
  leb128(head, trees.length, table.length, 0, 0);
  for (const tree of trees) leb128(head, tree.left.length, tree.group);
  const out = new ColumnWriter(head, first);
  if (scattered) {
    out.golomb(splits.map((split) => zigzag(split.lefts)));
    out.golomb(splits.map((split) => zigzag(split.rights)));
  }
  if (flags & DEFAULTS) out.plain(missing, 1);
  const features = table.map((pair) => Math.floor(pair / 2 ** 32));
  const thresholds = table.map((pair) => pair % 2 ** 32);
  out.golomb(features.map((f, i) => f - (i ? features[i - 1] : 0)));
  out.golomb(thresholds.map((t, i) => zigzag(t - (i ? thresholds[i - 1] : ONE))));
  out.plain(
    splits.map((split) => place.get(key(split))),
    bitsOf(table.length),
  );
  out.floats(leaves);
  return out.done();
}

/** Reads packed trees, all but their statistics. @returns {Tree[]} */
export function unpack(data) {
  if (!data.length) return [];
  let at = 2;
  const number = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = data[at];
      if (byte === undefined || scale > 2 ** 28) throw new Error("damaged trees");
      at += 1;
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  if (data[0] !== 1) throw new Error("trees of an unknown format");
  const flags = data[1];
  const [nTrees, nPairs, nSets, nCodes] = [number(), number(), number(), number()];
  if (nTrees > 65536) throw new Error("too many trees");
  const heads = Array.from({ length: nTrees }, () => ({ n: number(), group: number() }));
  if (flags & STATISTICS) at += 12;
  const nNodes = heads.reduce((sum, { n }) => sum + n, 0);
  const nSplits = heads.reduce((sum, { n }) => sum + (n - 1) / 2, 0);
  if (nNodes > Math.min(2 ** 24, 8 * data.length) || heads.some(({ n }) => n % 2 === 0))
    throw new Error("an impossible number of nodes");
  if (nPairs > nSplits || nSets > nSplits || nCodes > 8 * data.length)
    throw new Error("more splits than nodes");
  const nLeaves = nNodes - nSplits;
  const columns = [];
  if (flags & SCATTERED) columns.push({ n: nSplits }, { n: nSplits });
  columns.push({ n: nPairs }, { n: nPairs });
  if (flags & CATEGORIES) columns.push({ n: nSets }, { n: nCodes });
  columns.push({ n: nLeaves, float: true });
  if (flags & STATISTICS)
    columns.push({ n: nLeaves, float: true }, { n: nSplits }, { n: nLeaves }, { n: nSplits }, { n: nSplits });
  const read = new ColumnReader(data, at, columns, nNodes);
  if (read.first.filter(Boolean).length !== nLeaves) throw new Error("more splits than nodes");

  const none = new Array(nSplits).fill(0);
  const lefts = flags & SCATTERED ? read.golomb().map(unzigzag) : none;
  const rights = flags & SCATTERED ? read.golomb().map(unzigzag) : none;
  const missing = flags & DEFAULTS ? read.plain(nSplits, 1) : none;
  let feature = 0;
  const features = read.golomb().map((gap) => (feature += gap));
  let threshold = ONE;
  const thresholds = read.golomb().map((step) => fromOrdinal((threshold += unzigzag(step))));
  const pairs = read.plain(nSplits, bitsOf(nPairs));
  let sets = none;
  let codes = [];
  if (flags & CATEGORIES) {
    sets = read.plain(nSplits, 1);
    const sizes = read.golomb();
    const gaps = read.golomb();
    codes = sizes.map((size) => {
      let code = 0;
      return gaps.splice(0, size).map((gap) => (code += gap));
    });
  }
  const leaves = read.floats();

  let node = 0;
  let split = 0;
  let leaf = 0;
  let set = 0;
  return heads.map(({ n, group }) => {
    const tree = { group, left: [], right: [], feature: [], threshold: [], default_left: [] };
    tree.categories = new Map();
    let rank = 0;
    for (let own = 0; own < n; own += 1, node += 1) {
      if (read.first[node]) {
        tree.left.push(-1);
        tree.right.push(-1);
        tree.feature.push(0);
        tree.threshold.push(leaves[leaf]);
        tree.default_left.push(false);
        leaf += 1;
        continue;
      }
      const left = 1 + 2 * rank + lefts[split];
      const right = left + 1 + rights[split];
      if (pairs[split] >= nPairs || left <= own || right <= own || left >= n || right >= n)
        throw new Error("a split or child out of place");
      tree.left.push(left);
      tree.right.push(right);
      tree.feature.push(features[pairs[split]]);
      tree.threshold.push(thresholds[pairs[split]]);
      tree.default_left.push(Boolean(missing[split]));
      if (sets[split]) tree.categories.set(own, codes[set++]);
      split += 1;
      rank += 1;
    }
    return tree;
  });
}

/** Value of the leaf that a row ends in; a missing value is NaN. */
export function leafOf(tree, row) {
  let node = 0;
  while (tree.left[node] >= 0) {
    const x = row[tree.feature[node]];
    let left = x < tree.threshold[node];
    if (Number.isNaN(x)) left = tree.default_left[node];
    else if (tree.categories?.has(node)) left = !tree.categories.get(node).includes(x);
    node = left ? tree.left[node] : tree.right[node];
  }
  return tree.threshold[node];
}

export const GENESIS = createHash("sha256").update("hedgerow trees v1").digest();

/** Running digest with one more round {steps, silos, factors, sizes, data}. */
export function extendDigest(digest, added) {
  const names = added.silos.map((silo) => Buffer.from(silo));
  const whole = (values) => Buffer.from(Uint32Array.from(values).buffer);
  const factors = Buffer.from(Float64Array.from(added.factors).buffer);
  const head = whole([added.steps, names.length, ...names.map((name) => name.length)]);
  const hash = createHash("sha256");
  for (const part of [digest, head, ...names, factors, whole(added.sizes), added.data]) hash.update(part);
  return hash.digest();
}

/** Packed sums of scores. */
export function packSums(values) {
  if (!values.length) return Buffer.alloc(0);
  const whole = (v) => Number.isInteger(v) && v >= 0 && v < 2 ** 40 && !Object.is(v, -0);
  const others = values.flatMap((v, i) => (whole(v) ? [] : [i]));
  const head = Buffer.alloc(8 + 8 * others.length);
  head.writeUInt32LE(values.length, 0);
  head.writeUInt32LE(others.length, 4);
  others.forEach((place, i) => head.writeDoubleLE(values[place], 8 + 8 * i));
  const out = new ColumnWriter([...head]);
  out.golomb(others.map((place, i) => place - (i ? others[i - 1] : -1) - 1));
  out.golomb(values.filter(whole));
  return out.done();
}
