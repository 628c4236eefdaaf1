// Connection, lease, assignment and exchanges of a silo: docs/wire.md up to "An exchange".
import { X509Certificate, createPrivateKey, randomBytes, sign } from "node:crypto";
import { closeSync, existsSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

import { Jobs, PACKAGE, digestOf } from "./signed_job.mjs";

const DETAILS = "grpc-status-details-bin";
const LARGEST_PART = 1 << 20;

/** Loads the messages and services of the protos. */
export function load(protos) {
  return loader.loadSync(
    [
      `hedgerow/api/federation/v1/federation_service.proto`,
      `hedgerow/api/federation/v1/exchange_service.proto`,
      new URL("status.proto", import.meta.url).pathname,
    ],
    { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true, includeDirs: [protos] },
  );
}

/** A certificate, its key and the federation's CAs, from a folder. */
export class Identity {
  constructor(folder) {
    this.key = readFileSync(join(folder, "tls.key"));
    this.certificate = readFileSync(join(folder, "tls.crt"));
    this.ca = readFileSync(join(folder, "ca.crt"));
    this.roots = this.ca
      .toString()
      .match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----/g)
      .map((pem) => new X509Certificate(pem));
    const names = new X509Certificate(this.certificate).subjectAltName;
    [, this.federation, this.silo] = names.match(/URI:hedgerow:\/\/([^/]+)\/silo\/([^/,]+)/);
    this.private = createPrivateKey(this.key);
  }

  /** ECDSA with SHA-256, DER. */
  sign(message) {
    return sign("sha256", message, this.private);
  }
}

/** What a call failed with; `reason` is the coordinator's, or empty. */
class CallFailed extends Error {
  constructor(message, code, reason) {
    super(message);
    this.code = code;
    this.reason = reason;
    this.again = reason === "UNREACHABLE" || (!reason && [4, 14].includes(code));
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

export class Federation {
  constructor({ address, identity, protos, state }) {
    const definition = load(protos);
    const services = grpc.loadPackageDefinition(definition).hedgerow.api.federation.v1;
    const credentials = grpc.credentials.createSsl(identity.ca, identity.key, identity.certificate);
    const options = { "grpc.keepalive_time_ms": 10000, "grpc.keepalive_timeout_ms": 5000 };
    this.definition = definition;
    this.identity = identity;
    this.control = new services.FederationService(address, credentials, options);
    this.data = new services.ExchangeService(address, credentials, options);
    this.state = state;
    mkdirSync(state, { recursive: true });
    this.instance = this.recall("instance") ?? randomBytes(16).toString("hex");
    this.remember("instance", this.instance);
    this.held = [];
    this.jobs = new Jobs(this);
    this.working = [];
    this.stopped = new Set();
  }

  recall(name) {
    const path = join(this.state, `${name}.json`);
    return existsSync(path) ? JSON.parse(readFileSync(path)) : null;
  }

  /** Stores a record durably. */
  remember(name, value) {
    const path = join(this.state, `${name}.json`);
    const file = openSync(`${path}.new`, "w");
    writeFileSync(file, JSON.stringify(value));
    fsyncSync(file);
    closeSync(file);
    renameSync(`${path}.new`, path);
  }

  parse(name, data) {
    return this.definition[name].deserialize(data);
  }

  failure(error) {
    const [details] = error.metadata?.get(DETAILS) ?? [];
    let reason = "";
    if (details) {
      for (const detail of this.parse("google.rpc.Status", details).details) {
        const info = this.parse("google.rpc.ErrorInfo", detail.value);
        if (detail.type_url.endsWith("/google.rpc.ErrorInfo") && info.domain === "hedgerow")
          reason = info.reason;
      }
    }
    return new CallFailed(error.details ?? error.message, error.code, reason);
  }

  call(method, request, seconds = 10) {
    return new Promise((done, fail) => {
      this.control[method](request, { deadline: Date.now() + 1000 * seconds }, (error, response) =>
        error ? fail(this.failure(error)) : done(response),
      );
    });
  }

  // --- lease ---

  /** Calls with the lease; a lost one is taken again, a broken connection tried again. */
  async leased(method, request, seconds) {
    for (;;) {
      try {
        return await this.call(method, { ...request, lease_id: this.lease }, seconds);
      } catch (error) {
        if (error.reason === "LEASE_LOST") await this.register(this.size);
        else if (!error.again) throw error;
        await pause(0.3);
      }
    }
  }

  async register(size) {
    this.size = size;
    const { rows, columns } = size;
    const rowClass = rows ? 2 ** Math.ceil(Math.log2(rows)) : 0;
    for (;;) {
      try {
        const grant = await this.call("RegisterSilo", {
          instance_id: this.instance,
          version: this.version,
          strategies: ["bagging"],
          row_count_class: rowClass,
          n_columns: columns,
        });
        this.lease = grant.lease_id;
        this.#renewEvery(Math.min(grant.lease_seconds / 4, 2));
        return;
      } catch (error) {
        if (!error.again && error.reason !== "LEASE_HELD") throw error;
        await pause(0.5);
      }
    }
  }

  #renewEvery(seconds) {
    clearInterval(this.timer);
    this.timer = setInterval(async () => {
      try {
        const busy = this.working.map((key) => key.job_id);
        const kept_jobs = this.jobs.unfinished.filter((id) => !busy.includes(id)).slice(0, 16);
        const request = { lease_id: this.lease, working: this.working, kept_jobs };
        const { stop, ended_jobs } = await this.call("RenewLease", request, 5);
        this.jobs.end(ended_jobs);
        for (const key of stop) this.stopped.add(`${key.job_id}/${key.attempt}`);
      } catch {
        // The next call with the lease shows what is wrong.
      }
    }, 1000 * seconds);
  }

  async nextAssignment() {
    for (;;) {
      const { assignment } = await this.leased("AwaitAssignment", { held: this.held }, 35);
      if (!assignment) continue;
      this.held.push(assignment.key);
      return assignment;
    }
  }

  async accept(assignment, schema, nSamples) {
    const digest = digestOf(assignment.job);
    const zero = Buffer.alloc(1);
    const message = Buffer.concat([
      Buffer.from("hedgerow/accept/v1"),
      zero,
      Buffer.from(assignment.key.job_id),
      zero,
      digest,
    ]);
    const accepted = {
      schema,
      n_samples: nSamples,
      job_digest: digest,
      signature: this.identity.sign(message),
      certificate: this.identity.certificate,
      sums_version: 2,
    };
    const request = { key: assignment.key, accepted };
    for (;;) {
      const { agreement } = await this.leased("AcceptAssignment", request, 35);
      if (agreement) return { ...agreement, digest };
    }
  }

  decline(assignment, why) {
    return this.leased("AcceptAssignment", { key: assignment.key, declined: why }, 35);
  }

  async end() {
    clearInterval(this.timer);
    await this.call("ReleaseLease", { lease_id: this.lease }, 2);
  }

  // --- exchanges ---

  /** The exchanges of one attempt, all by one stream as long as none fails. */
  link(key, spec) {
    const seconds = 2 * (spec.step_timeout_seconds ?? 600) + 30;
    const name = `job-${key.job_id}`;
    const stream = { call: null };
    return {
      exchange: (kind, step, at, family, parts) =>
        this.exchange(stream, { ...at, ...key, step, kind }, family, parts, seconds),
      end: () => stream.call?.end(),
      passed: (why) => new CallFailed(why, 9, "PLACE_PASSED"),
      recall: () => this.recall(name),
      remember: (value) => this.remember(name, value),
    };
  }

  /** Offers parts and returns those of the reply; the same frames are sent again after a break. */
  async exchange(stream, key, family, parts, seconds) {
    const deadline = Date.now() + 1000 * seconds;
    const frames = parts.length ? parts.map((part) => ({ [family]: part })) : [{}];
    frames[0].key = { ...key, frames: frames.length - 1 };
    for (;;) {
      try {
        return await this.#once(stream, frames, family, deadline);
      } catch (error) {
        stream.call?.cancel();
        stream.call = null;
        if (this.stopped.has(`${key.job_id}/${key.attempt}`)) throw error;
        if (!error.again || Date.now() >= deadline) throw error;
        await pause(Math.random());
      }
    }
  }

  #once(stream, frames, family, deadline) {
    return new Promise((done, fail) => {
      const call = (stream.call ??= this.data.Exchange());
      const [{ key }] = frames;
      const parts = [];
      let left = -1;
      const end = (finish, value) => {
        clearTimeout(timer);
        const gone = () => stream.call === call && (stream.call = null);
        call.removeAllListeners().on("error", gone).on("status", gone);
        finish(value);
      };
      const late = () => end(fail, new CallFailed("no reply before the deadline", 4, ""));
      const timer = setTimeout(late, deadline - Date.now());
      call.on("data", (frame) => {
        if (frame.frame === "waiting") return;
        const first = left < 0;
        const same = (f) => frame.key?.[f] === (key[f] ?? 0);
        if (first && !["step", "round", "level", "pass"].every(same))
          return end(fail, new Error(`expected the reply to ${key.step}, received ${frame.key?.step}`));
        if (frame.frame === family) parts.push(frame[family]);
        else if (frame.frame || !first)
          return end(fail, new Error(`expected frames ${family}, received ${frame.frame}`));
        left = first ? frame.key.frames : left - 1;
        if (!left) end(done, parts);
      });
      call.on("error", (error) => end(fail, this.failure(error)));
      call.on("end", () => {}); // the status follows, as an error
      call.on("status", () => end(fail, new CallFailed("the stream ended before the reply", 14, "")));
      for (const frame of frames) call.write(frame);
    });
  }
}

/** Cuts bytes into a first piece and `more` pieces of at most 1 MiB. */
export function pieces(data) {
  const cut = [];
  for (let at = 0; at < data.length; at += LARGEST_PART) cut.push(data.subarray(at, at + LARGEST_PART));
  return cut.length ? cut : [data];
}

export { PACKAGE };
