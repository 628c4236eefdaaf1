// Bagging, the silo's side, with stumps of our own: docs/wire.md, "Bagging".
import { pieces } from "./federation.mjs";
import { schemaState } from "./views.mjs";
import { SecureSums, exactParts, exactSums, quotient, readResidues, packResidues } from "./secure_sum.mjs";
import { GENESIS, extendDigest, leafOf, pack, unpack } from "./trees.mjs";

const START = { round: 0, level: 0, pass: 0 };
const sigmoid = (m) => 1 / (1 + Math.exp(-m));

/** Why this silo cannot take part, or nothing. */
export function unfit(spec) {
  const task = spec.task === "TASK_REGRESSION" ? "regression" : "binary";
  const objective = spec.booster?.objective ?? objectiveOf(task);
  if (spec.task === "TASK_MULTICLASS") return "this silo has stumps of one class only";
  if (objective !== objectiveOf(task)) return `objective ${objective} is not known here`;
  if ((spec.booster?.num_parallel_tree ?? 1) !== 1) return "num_parallel_tree above 1";
  if (spec.bagging?.evaluate !== "none" || spec.bagging?.validation) return "this silo scores no rows";
  if (spec.bagging?.scrub !== "none") return "this silo makes no sum of covers: scrub must be none";
  return "";
}

const objectiveOf = (task) => (task === "regression" ? "reg:squarederror" : "binary:logistic");

/** Takes part in a job; returns what became of it. */
export class Bagging {
  constructor({ link, identity, key, spec, digest, roster, groups, schema, table }) {
    Object.assign(this, { link, identity, key, spec, roster, groups, schema, table });
    this.jobDigest = digest;
    const given = spec.bagging ?? {};
    this.regression = spec.task === "TASK_REGRESSION";
    this.rounds = given.rounds ?? 50;
    this.steps = given.trees_per_round ?? 1;
    this.secureMean = given.secure_mean ?? true;
    this.leafBound = this.regression ? 0 : (given.leaf_bound ?? 10);
    this.lambda = spec.booster?.lambda ?? 1;
    this.leastChild = spec.booster?.min_child_weight ?? 1;
    this.version = 0;
    this.digest = GENESIS;
    this.offered = Buffer.alloc(0);
    this.report = { job_id: key.job_id, rounds: 0, offers: 0 };
  }

  async run() {
    let standing = await this.#synchronise(-1);
    for (;;) {
      if (standing.score_train || standing.score_valid) throw new Error("scores were asked for, which the job has not");
      if (standing.round >= this.rounds) break;
      const resumeAt = standing.round + 1;
      try {
        const [first, ...more] = pieces(this.#train(standing));
        const offer = { version: this.version, steps: first.length ? this.steps : 0, gain: this.gain, data: first };
        const at = { ...START, round: standing.round };
        const parts = [{ offer }, ...more.map((piece) => ({ more: piece }))];
        standing = this.#receive(await this.link.exchange("EXCHANGE_KIND_TREES", "trees", at, "trees", parts));
      } catch (error) {
        if (error.reason !== "PLACE_PASSED") throw error;
        standing = await this.#synchronise(resumeAt);
      }
    }
    return { ...this.report, rounds: this.version, base_score: this.base, digest: this.digest.toString("hex") };
  }

  async #synchronise(firstRound) {
    const catchUp = { version: this.version, first_round: firstRound, n_samples: this.table.y.length };
    const at = { ...START, round: Math.max(firstRound, 0) };
    const parts = await this.link.exchange("EXCHANGE_KIND_TREES", "sync", at, "trees", [{ catch_up: catchUp }]);
    const standing = this.#receive(parts);
    if (standing._base_score || firstRound >= 0) return standing;
    try {
      this.#begin(await this.#mean());
    } catch (error) {
      if (error.reason !== "PLACE_PASSED") throw error;
      return this.#synchronise(0);
    }
    return standing;
  }

  async #mean() {
    const values = exactParts(this.table.y, this.table.y.map(() => 1));
    let total;
    if (this.secureMean && this.roster.length >= 3) {
      const sums = new SecureSums(this.link, this.identity, {
        jobId: this.key.job_id,
        attempt: this.key.attempt,
        digest: this.jobDigest,
        roster: this.roster,
        groups: this.groups,
        leastSilos: Math.max(this.spec.min_silos, 3),
      });
      await sums.setup(START);
      total = await sums.sum("sum", "EXCHANGE_KIND_SUMS", START, values, schemaState(this.schema));
    } else {
      const vector = { ring_bits: 64, n_values: values.length, data: packResidues(values) };
      const [part] = await this.link.exchange("EXCHANGE_KIND_SUMS", "sum-plain", START, "masking", [
        { plain: { vector } },
      ]);
      total = { values: readResidues(part.total.vector.data), present: part.total.present };
    }
    const [labels, weight] = exactSums(total.values);
    this.report.sum = { labels: String(labels), weight: String(weight), present: total.present };
    return quotient(labels, weight);
  }

  #begin(base) {
    if (this.margins) return;
    this.base = base;
    this.start = this.regression ? base : Math.log(base / (1 - base));
    this.margins = this.table.y.map(() => Math.fround(this.start));
  }

  /** Adds the rounds of a standing; returns its head. */
  #receive([head, ...rest]) {
    const { standing } = head;
    if (standing._base_score) this.#begin(standing.base_score);
    const rounds = [];
    for (const part of rest) {
      if (part.part === "round") rounds.push({ ...part.round, data: [part.round.data] });
      else rounds.at(-1).data.push(part.more);
    }
    let digest = this.digest;
    for (const added of rounds) {
      added.data = Buffer.concat(added.data);
      if (!added.factors.length) added.factors = added.silos.map(() => 1);
      const sum = (sizes) => sizes.reduce((all, size) => all + size, 0);
      if (added.data.length < sum(added.sizes)) {
        const start = sum(added.sizes.slice(0, added.silos.indexOf(this.identity.silo)));
        added.data = Buffer.concat([added.data.subarray(0, start), this.offered, added.data.subarray(start)]);
      }
      digest = extendDigest(digest, added);
    }
    if (!digest.equals(standing.digest)) throw new Error("the coordinator has another model");
    for (const { sizes, factors, data } of rounds) {
      let start = 0;
      sizes.forEach((size, i) => {
        for (const tree of unpack(data.subarray(start, start + size))) this.#add(tree, factors[i]);
        start += size;
      });
    }
    this.digest = digest;
    this.version = standing.version;
    return standing;
  }

  #add(tree, factor) {
    const threshold = tree.threshold.map((v, node) =>
      tree.left[node] < 0 ? Math.fround(v * factor) : v,
    );
    const scaled = { ...tree, threshold };
    this.table.rows.forEach((row, i) => {
      this.margins[i] = Math.fround(this.margins[i] + leafOf(scaled, row));
    });
  }

  /** Packed stumps of a round; no bytes where this silo adds none. */
  #train(standing) {
    this.offered = Buffer.alloc(0);
    this.gain = 0;
    if (!standing.eta || standing.round !== this.version || !this.table.y.length) return this.offered;
    const margins = [...this.margins];
    const trees = [];
    for (let step = 0; step < this.steps; step += 1) {
      const tree = this.#stump(margins, standing.eta);
      trees.push(tree);
      this.table.rows.forEach((row, i) => (margins[i] = Math.fround(margins[i] + leafOf(tree, row))));
    }
    this.report.offers += 1;
    this.offered = pack(trees);
    return this.offered;
  }

  #stump(margins, eta) {
    const pairs = margins.map((m, i) => {
      if (this.regression) return [m - this.table.y[i], 1];
      const p = sigmoid(m);
      return [p - this.table.y[i], Math.max(p * (1 - p), 1e-16)];
    });
    const total = pairs.reduce(([g, h], pair) => [g + pair[0], h + pair[1]], [0, 0]);
    const score = ([g, h]) => (g * g) / (h + this.lambda);
    let best = { gain: 0 };
    for (let feature = 0; feature < this.table.names.length; feature += 1) {
      const value = (i) => this.table.rows[i][feature];
      const order = [...pairs.keys()].sort((a, b) => value(a) - value(b));
      let left = [0, 0];
      for (let k = 0; k + 1 < order.length; k += 1) {
        left = [left[0] + pairs[order[k]][0], left[1] + pairs[order[k]][1]];
        const [low, high] = [value(order[k]), value(order[k + 1])];
        const right = [total[0] - left[0], total[1] - left[1]];
        if (low === high || left[1] < this.leastChild || right[1] < this.leastChild) continue;
        const gain = score(left) + score(right) - score(total);
        if (gain <= best.gain) continue;
        const middle = Math.fround((low + high) / 2);
        best = { gain, feature, left, right, threshold: middle > low ? middle : high };
      }
    }
    this.gain += best.gain;
    const leaf = ([g, h]) => {
      const value = (-g / (h + this.lambda)) * eta;
      const bound = this.leafBound * eta * (1 - 2 ** -23); // float32 must not round above it
      return Math.fround(bound ? Math.min(Math.max(value, -bound), bound) : value);
    };
    if (best.feature === undefined)
      return { group: 0, left: [-1], right: [-1], feature: [0], threshold: [leaf(total)], default_left: [false] };
    return {
      group: 0,
      left: [1, -1, -1],
      right: [2, -1, -1],
      feature: [best.feature, 0, 0],
      threshold: [best.threshold, leaf(best.left), leaf(best.right)],
      default_left: [false, false, false],
    };
  }
}
