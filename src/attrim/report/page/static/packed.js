// Matrices that travel as bytes: decoded when they are first looked at.

import { plain } from "./dom.js";

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at += 1) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

let halves = null;

// All 65536 numbers of 16 bits.
function halfTable() {
  if (halves === null) {
    halves = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits += 1) {
      const sign = bits & 0x8000 ? -1 : 1;
      const exponent = (bits >> 10) & 31;
      const fraction = bits & 1023;
      if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
      else if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
      else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
    }
  }
  return halves;
}

// Some matrices of one size, as bytes with their range or as numbers.
export class Grid {
  constructor({ count, rows, columns, low, high, root = false, bytes = null, numbers = null }) {
    Object.assign(this, { count, rows, columns, low, high, root, bytes, numbers });
    this.size = rows * columns;
    this.table = null;
    if (bytes !== null) {
      this.table = Float64Array.from({ length: 256 }, (_, byte) => {
        const share = root ? (byte / 255) ** 2 : byte / 255;
        return low + (high - low) * share;
      });
    }
  }

  value(index, row, column) {
    const at = index * this.size + row * this.columns + column;
    return this.bytes !== null ? this.table[this.bytes[at]] : this.numbers[at];
  }

  // The numbers of one matrix.
  *values(index) {
    for (let at = index * this.size; at < (index + 1) * this.size; at += 1) {
      yield this.bytes !== null ? this.table[this.bytes[at]] : this.numbers[at];
    }
  }

  // The smallest and largest finite number of one matrix.
  ends(index) {
    let low = Infinity;
    let high = -Infinity;
    const from = index * this.size;
    for (let at = from; at < from + this.size; at += 1) {
      const value = this.bytes !== null ? this.bytes[at] : this.numbers[at];
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) return [0, 0];
    return this.bytes !== null ? [this.table[low], this.table[high]] : [low, high];
  }

  // The place of every cell on a colour scale, 0 to 255.
  levels(index, scale) {
    const levels = new Uint8Array(this.size);
    const from = index * this.size;
    if (this.bytes !== null) {
      const places = Uint8Array.from(this.table, (value) => Math.round(255 * scale.share(value)));
      for (let at = 0; at < this.size; at += 1) levels[at] = places[this.bytes[from + at]];
    } else {
      for (let at = 0; at < this.size; at += 1) levels[at] = Math.round(255 * scale.share(this.numbers[from + at]));
    }
    return levels;
  }
}

const known = new WeakMap();

// A `Grid` of a packed matrix; the same one whenever it is asked for again.
export function unpack(packed) {
  if (!known.has(packed)) known.set(packed, decode(packed));
  return known.get(packed);
}

function decode(packed) {
  const [count, rows, columns] = packed.shape;
  let bytes = packed.bytes;
  if (bytes === undefined) bytes = document.getElementById(packed.block).textContent;
  if (typeof bytes === "string") bytes = fromBase64(bytes);
  const low = plain(packed.low ?? 0);
  const high = plain(packed.high ?? 1);
  if (packed.type === "uint8") return new Grid({ count, rows, columns, low, high, root: packed.curve === "root", bytes });
  const own = bytes.byteOffset % 4 === 0 ? bytes : bytes.slice();
  let numbers;
  if (packed.type === "float16") {
    const table = halfTable();
    numbers = Float32Array.from(new Uint16Array(own.buffer, own.byteOffset, own.byteLength / 2), (bits) => table[bits]);
  } else {
    numbers = new Float32Array(own.buffer, own.byteOffset, own.byteLength / 4);
  }
  return new Grid({ count, rows, columns, low, high, numbers });
}

// A `Grid` of nested arrays with null for gaps; matrices of one size.
export function gridOf(matrices) {
  const rows = matrices[0].length;
  const columns = matrices[0][0]?.length ?? 0;
  const numbers = new Float64Array(matrices.length * rows * columns);
  let at = 0;
  for (const matrix of matrices) for (const row of matrix) for (const value of row) { numbers[at] = plain(value); at += 1; }
  return new Grid({ count: matrices.length, rows, columns, low: 0, high: 1, numbers });
}
