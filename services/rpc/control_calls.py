"""What the requests of an agent's control calls tell the coordinator."""

from __future__ import annotations

REVEALS = {
    "RegisterSilo": "that this silo's agent is there: its version, the strategies and the numbers "
    "that its policy sets, how many columns its table has, and how many rows, rounded up to a "
    "power of two",
    "AwaitAssignment": "that this agent waits for work, and the attempts that it knows of",
    "AcceptAssignment": "this silo's answer to a job: its columns' names, types and category lists "
    "(in a vertical job none of them) and its number of rows (rounded up to a power of two unless "
    "the strategy says otherwise), with a signature over the job's digest; or why it declines",
    "AnswerPreflight": "what this silo would answer to a job that an operator asks about: columns, "
    "rows and reasons as when it accepts or declines, whether its crypto process answers, and "
    "whether its disk has room",
    "RenewLease": "that this agent is alive, what it works on, which jobs it knows, which list of "
    "revoked certificates it has, whether its crypto process answers, how fast it and its line are",
    "ReportOutcome": "that this silo's half of a job has ended, or why it failed; how many "
    "payloads and bytes it sent for the job, by kind of exchange; a signature over the digest of "
    "the model that it has checked; where it has test rows of its own and its policy allows "
    "scores, the model's scores on them, to four digits",
    "FetchResult": "that this silo takes a job's model",
    "GatherSites": "that a script of this silo is there, with how many others it is to run jobs, "
    "its rank, and random bytes",
    "ProposeJob": "a job that this silo's script would run, with its signature; nothing of its "
    "table",
    "FollowJob": "that this silo's script waits for a job that it has signed, how many of its "
    "rounds it knows, and whether it wants the job to end",
    "ReleaseLease": "that this agent ends",
}
"""What the requests of an agent's control calls tell the coordinator."""
TELLING = frozenset({"RegisterSilo", "AcceptAssignment", "AnswerPreflight"})
"""Those that always tell something of the silo's data; a report does where it has scores."""
