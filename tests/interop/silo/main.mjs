// A silo: node main.mjs SETTINGS.json
// Settings: address, identity, protos, state, data (CSV), jobs (how many to take part in), version, report.
import { readFileSync, writeFileSync } from "node:fs";

import { Bagging, unfit } from "./bagging.mjs";
import { Federation, Identity } from "./federation.mjs";

/** Numeric columns of a CSV file as float32; an empty field is missing. */
function readTable(path) {
  const [head, ...lines] = readFileSync(path, "utf8").trim().split("\n");
  const names = head.split(",");
  const rows = lines.map((line) => line.split(",").map((text) => (text === "" ? NaN : Number(text))));
  return { names, rows };
}

function forJob({ names, rows }, spec) {
  const label = spec.label || "label";
  const usable = (name) => !/^(_|label_)/.test(name) && name !== label && name !== "label";
  const features = spec.features.length ? spec.features : names.filter(usable);
  const columns = features.map((name) => names.indexOf(name));
  const at = names.indexOf(label);
  if (at < 0 || columns.includes(-1)) throw new Error("a column of the job is not in the table");
  return {
    label,
    names: features,
    rows: rows.map((row) => columns.map((column) => Math.fround(row[column]))),
    y: rows.map((row) => row[at]),
  };
}

const settings = JSON.parse(readFileSync(process.argv[2], "utf8"));
const identity = new Identity(settings.identity);
const federation = new Federation({ ...settings, identity });
federation.version = settings.version;
const everything = readTable(settings.data);
await federation.register({ rows: everything.rows.length, columns: everything.names.length - 1 });

const reports = [];
while (reports.length < settings.jobs) {
  const assignment = await federation.nextAssignment();
  let opened;
  try {
    opened = federation.jobs.open(assignment);
    const why = opened.spec.strategy === "bagging" ? unfit(opened.spec) : "this silo knows bagging only";
    if (why) throw new Error(why);
  } catch (failure) {
    await federation.decline(assignment, failure.message);
    continue;
  }
  const { spec } = opened;
  const { key } = assignment;
  let error = "";
  let link;
  try {
    const table = forJob(everything, spec);
    const schema = {
      features: table.names.map((name) => ({ name })),
      label: table.label,
      task: spec.task,
      n_classes: spec.task === "TASK_REGRESSION" ? 0 : 2,
    };
    federation.jobs.accept(assignment, opened.until);
    const agreement = await federation.accept(assignment, schema, table.y.length);
    federation.jobs.checkSilos(spec, agreement.silos);
    federation.working = [key];
    link = federation.link(key, spec);
    const { silos: roster, schema: agreed, digest } = agreement;
    const groups = agreement.groups.map((group) => group.silos);
    reports.push(
      await new Bagging({ link, identity, key, spec, digest, roster, groups, schema: agreed, table }).run(),
    );
  } catch (failure) {
    error = String(failure.message);
    reports.push({ job_id: key.job_id, error, reason: failure.reason });
  }
  link?.end();
  federation.working = [];
  await federation.leased("ReportOutcome", { key, error }, 10);
}
writeFileSync(settings.report, JSON.stringify(reports, null, 1));
await federation.end();
process.exit(reports.some((report) => report.error) ? 1 : 0);
