// Columns of integers and float32 as bits: docs/wire.md, "Columns of integers".
// Values stay below 2^53, so arithmetic is on numbers and never by 32-bit operators.

const ZEROS = 255;
const EXPONENTIAL = 64;

const scratch = new DataView(new ArrayBuffer(4));

function floatBits(value) {
  scratch.setFloat32(0, value);
  return scratch.getUint32(0);
}

function floatOf(bits) {
  scratch.setUint32(0, bits);
  return scratch.getFloat32(0);
}

/** Position of a float32 in numeric order. */
export function ordinal(value) {
  const bits = floatBits(value);
  return bits >= 2 ** 31 ? 2 ** 32 - 1 - bits : 2 ** 31 + bits;
}

/** The float32 at a position, modulo 2^32. */
export function fromOrdinal(position) {
  const place = ((position % 2 ** 32) + 2 ** 32) % 2 ** 32;
  return floatOf(place >= 2 ** 31 ? place - 2 ** 31 : 2 ** 32 - 1 - place);
}

export const zigzag = (v) => (v >= 0 ? 2 * v : -2 * v - 1);
export const unzigzag = (v) => (v % 2 === 0 ? v / 2 : -(v + 1) / 2);

const bitLength = (v) => {
  let n = 0;
  for (; v >= 1; v /= 2) n += 1;
  return n;
};

function bestParameter(values) {
  if (!values.some((v) => v !== 0)) return ZEROS;
  let best = [Infinity, 0];
  for (const exponential of [false, true]) {
    for (let k = 0; k < 40; k += 1) {
      let bits = 0;
      for (const v of values) {
        const q = Math.floor(v / 2 ** k);
        bits += exponential ? 2 * bitLength(q + 1) + k - 1 : q + 1 + k;
      }
      if (bits < best[0]) best = [bits, exponential ? EXPONENTIAL + k : k];
    }
  }
  return best[1];
}

export class ColumnWriter {
  /** @param {number[]} head bytes in front @param {boolean[]} first bits before all columns */
  constructor(head, first = []) {
    this.head = [...head];
    this.first = first;
    this.unary = [];
    this.binary = [];
  }

  plain(values, width) {
    for (const v of values) this.binary.push([v, width]);
  }

  golomb(values) {
    const parameter = bestParameter(values);
    this.head.push(parameter);
    if (parameter === ZEROS) return;
    const k = parameter % EXPONENTIAL;
    for (const v of values) {
      const shifted = Math.floor(v / 2 ** k);
      if (parameter < EXPONENTIAL) {
        this.unary.push(shifted);
        this.binary.push([v % 2 ** k, k]);
      } else {
        const q = bitLength(shifted + 1) - 1;
        this.unary.push(q);
        this.binary.push([v - (2 ** q - 1) * 2 ** k, q + k]);
      }
    }
  }

  floats(values) {
    const bits = values.map(floatBits);
    const exponents = bits.map((b) => (b >>> 23) & 0xff);
    const used = bits.reduce((all, b) => all | (b & 0x7fffff), 0);
    let zeros = 23;
    if (used) for (zeros = 0; (used >>> zeros) % 2 === 0; ) zeros += 1;
    const top = Math.max(0, ...exponents);
    this.head.push(top, zeros);
    this.golomb(
      bits.map((b, i) =>
        Math.floor(
          ((top - exponents[i]) * 2 ** 24 + (b >>> 31) * 2 ** 23 + (b & 0x7fffff)) / 2 ** zeros,
        ),
      ),
    );
  }

  done() {
    const bits = this.first.map(Number);
    for (const count of this.unary) {
      for (let i = 0; i < count; i += 1) bits.push(0);
      bits.push(1);
    }
    for (const [value, width] of this.binary) {
      for (let at = width - 1; at >= 0; at -= 1) bits.push(Math.floor(value / 2 ** at) % 2);
    }
    const bytes = [...this.head];
    for (let at = 0; at < bits.length; at += 8) {
      let byte = 0;
      for (let i = 0; i < 8; i += 1) byte = byte * 2 + (bits[at + i] ?? 0);
      bytes.push(byte);
    }
    return Buffer.from(bytes);
  }
}

export class ColumnReader {
  /**
   * @param {Buffer} data @param {number} at where the columns' parameters begin
   * @param {{n: number, float?: boolean}[]} columns all Golomb and float columns, in order
   * @param {number} nFirst bits before all columns
   */
  constructor(data, at, columns, nFirst) {
    this.data = data;
    this.columns = columns.map(({ n, float }) => {
      const size = float ? 3 : 1;
      const parameters = [...data.subarray(at, at + size)];
      if (parameters.length !== size) throw new Error("columns end too early");
      at += size;
      return { n, parameters };
    });
    this.bit = 8 * at;
    this.first = this.#take(nFirst);
    for (const column of this.columns) {
      column.unary = [];
      if (column.parameters.at(-1) === ZEROS) continue;
      for (let i = 0; i < column.n; i += 1) {
        let zeros = 0;
        while (this.#next() === 0) zeros += 1;
        column.unary.push(zeros);
      }
    }
    this.column = 0;
  }

  #next() {
    const byte = this.data[this.bit >> 3];
    if (byte === undefined) throw new Error("columns end too early");
    const bit = (byte >> (7 - (this.bit & 7))) & 1;
    this.bit += 1;
    return bit;
  }

  #take(n) {
    return Array.from({ length: n }, () => this.#next());
  }

  #number(width) {
    let value = 0;
    for (let i = 0; i < width; i += 1) value = value * 2 + this.#next();
    return value;
  }

  plain(n, width) {
    return Array.from({ length: n }, () => this.#number(width));
  }

  golomb() {
    const { n, parameters, unary } = this.columns[this.column];
    this.column += 1;
    const parameter = parameters.at(-1);
    if (parameter === ZEROS) return new Array(n).fill(0);
    const k = parameter % EXPONENTIAL;
    if (parameter >= 2 * EXPONENTIAL || k > 56) throw new Error("a damaged column");
    return unary.map((q) =>
      parameter < EXPONENTIAL
        ? q * 2 ** k + this.#number(k)
        : (2 ** q - 1) * 2 ** k + this.#number(q + k),
    );
  }

  floats() {
    const [top, zeros] = this.columns[this.column].parameters;
    return this.golomb().map((shifted) => {
      const code = shifted * 2 ** zeros;
      const exponent = top - Math.floor(code / 2 ** 24);
      if (exponent < 0) throw new Error("a damaged column");
      const rest = code % 2 ** 24;
      const sign = Math.floor(rest / 2 ** 23);
      return floatOf(sign * 2 ** 31 + exponent * 2 ** 23 + (rest % 2 ** 23));
    });
  }
}
