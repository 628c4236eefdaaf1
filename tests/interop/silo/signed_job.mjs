// A job as its operator signed it: docs/wire.md, "The signed job".
import { X509Certificate, createHash, verify as verifySignature } from "node:crypto";

export const LABEL = Buffer.from("hedgerow/job/v1\0");
export const APPROVAL_LABEL = Buffer.from("hedgerow/job-approval/v1\0");
export const PACKAGE = "hedgerow.api.federation.v1";

/** Role and name of who signed a message under the federation's CA; raises where nobody did. */
export function signerOf(identity, pem, message, signature) {
  const certificate = new X509Certificate(pem);
  const now = new Date();
  const names = (certificate.subjectAltName ?? "").split(", ").filter((n) => n.startsWith("URI:"));
  const issued = identity.roots.some(
    (ca) => ca.ca && certificate.checkIssued(ca) && certificate.verify(ca.publicKey),
  );
  const [, federation, role, name] = names[0]?.match(/^URI:hedgerow:\/\/([^/]+)\/([^/]+)\/([^/]+)$/) ?? [];
  if (
    !issued ||
    certificate.ca ||
    names.length !== 1 ||
    federation !== identity.federation ||
    now < new Date(certificate.validFrom) ||
    now > new Date(certificate.validTo) ||
    !verifySignature("sha256", message, certificate.publicKey, signature)
  )
    throw new Error(`the certificate or signature of ${role} ${name} is not valid`);
  return { role, name };
}

export const digestOf = (job) => createHash("sha256").update(job.statement).digest();

/** What an approver signs of a job. */
export const approvalOf = (job) =>
  Buffer.concat([APPROVAL_LABEL, digestOf(job), createHash("sha256").update(job.certificate).digest()]);

/** The jobs that a silo has accepted: one nonce is one job. */
export class Jobs {
  constructor(federation) {
    this.federation = federation;
    this.accepted = federation.recall("accepted") ?? {};
  }

  /** The JobSpec of an assignment; raises where the silo must decline it. */
  open({ key, silos, job }) {
    const { federation } = this;
    const { identity } = federation;
    const signer = signerOf(identity, job.certificate, Buffer.concat([LABEL, job.statement]), job.signature);
    if (signer.role !== "operator" && signer.role !== "admin")
      throw new Error(`${signer.role} ${signer.name} signed the job`);
    const statement = federation.parse(`${PACKAGE}.JobStatement`, job.statement);
    if (statement.nonce.length !== 16 || statement.view_version !== 1)
      throw new Error("expected a nonce of 16 bytes and view version 1");
    if (statement.sites.length || statement.turn) throw new Error("the job is of scripts");
    if (statement.federation !== identity.federation) throw new Error("the job is for another federation");
    if (Number(statement.not_after.seconds) < Date.now() / 1000) throw new Error("the job has expired");
    if (key.job_id !== statement.nonce.toString("base64url"))
      throw new Error("the coordinator gave the job another identifier");
    const known = this.accepted[key.job_id];
    if (known && known.digest !== digestOf(job).toString("hex")) throw new Error("the job has been changed");
    if (known?.ended) throw new Error("the job has ended");
    const spec = federation.parse(`${PACKAGE}.JobSpec`, statement.spec);
    this.checkApprovals(spec, job, signer.name);
    this.checkSilos(spec, silos);
    return { spec, until: Number(statement.not_after.seconds) };
  }

  /** Raises unless enough of the job's approvers, its operator not counted, have signed it. */
  checkApprovals(spec, job, operator) {
    const signed = new Set();
    for (const { certificate, signature } of job.approvals) {
      try {
        const { role, name } = signerOf(this.federation.identity, certificate, approvalOf(job), signature);
        const person = ["operator", "admin", "viewer"].includes(role) && name !== operator;
        if (person && spec.approvers.includes(name)) signed.add(name);
      } catch {
        continue; // it counts for nothing
      }
    }
    if (signed.size < (spec.min_approvals || new Set(spec.approvers).size))
      throw new Error(`the job is not approved: ${[...signed].join(", ") || "nobody"} has signed`);
  }

  /** Raises unless the job allows these silos, this one among them. */
  checkSilos(spec, silos) {
    if (spec.silos.length && !silos.every((silo) => spec.silos.includes(silo)))
      throw new Error("the job does not allow one of the silos");
    if (!silos.includes(this.federation.identity.silo) || new Set(silos).size < spec.min_silos)
      throw new Error("this silo is not among the silos, or they are too few");
  }

  /** Keeps an accepted job until it expires. */
  accept({ key, job }, until) {
    this.accepted[key.job_id] ??= { digest: digestOf(job).toString("hex"), until, ended: false };
    const now = Date.now() / 1000;
    for (const [id, kept] of Object.entries(this.accepted)) if (kept.until < now) delete this.accepted[id];
    this.federation.remember("accepted", this.accepted);
  }

  /** Identifiers of the jobs that have not ended. */
  get unfinished() {
    return Object.keys(this.accepted).filter((id) => !this.accepted[id].ended);
  }

  end(ids) {
    for (const id of ids) if (this.accepted[id]) this.accepted[id].ended = true;
    if (ids.length) this.federation.remember("accepted", this.accepted);
  }
}
