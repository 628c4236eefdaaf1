// Views: docs/wire.md, "Views".
import { createHash } from "node:crypto";

function item(letter, raw) {
  const head = Buffer.alloc(9);
  head.write(letter);
  head.writeBigUInt64BE(BigInt(raw.length), 1);
  return Buffer.concat([head, raw]);
}

/** The encoding of null, an integer, a text, bytes, or an array of these. */
function encoded(value) {
  if (value === null) return item("n", Buffer.alloc(0));
  if (Number.isInteger(value)) return item("i", Buffer.from(String(value)));
  if (typeof value === "string") return item("s", Buffer.from(value));
  if (Buffer.isBuffer(value)) return item("b", value);
  return item("l", Buffer.concat(value.map(encoded)));
}

export const stateDigest = (...state) =>
  createHash("sha256").update(Buffer.concat(state.map(encoded))).digest();

/** The state of a sum over an agreed schema alone: a TableSchema. */
export const schemaState = ({ features, label, task, n_classes: nClasses, classes, numbered }) =>
  stateDigest([
    features.map(({ name, categorical, categories }) => [name, categorical ? categories : null]),
    label,
    task.replace("TASK_", "").toLowerCase(),
    nClasses,
    classes ?? [],
    numbered ? 1 : 0,
  ]);

/** The view of one sum in a 64-bit ring. */
export const sumView = (job, name, at, n, state) =>
  stateDigest("hedgerow view v1", job, name, at.round, at.level, at.pass, n, 64, state);
