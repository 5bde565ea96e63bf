"""Table of all verbs: the module of each and its line in ``hpcdet --help``.

The list is data so that help and completion need not import the verbs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """``module`` is a module below ``hpcdet.cli``, with the command under the verb's name."""

    name: str
    module: str
    help: str
    hidden: bool = False

    @property
    def attribute(self) -> str:
        return f"{self.name}_command"


SECTIONS: dict[str, tuple[Verb, ...]] = {
    "Set up": (
        Verb("init", "setup.init", "Make a folder with an example config and model."),
        Verb("doctor", "setup.doctor", "Check this machine, its scheduler and file system."),
        Verb("site", "setup.site", "Show, detect and check sites (what is known of a cluster)."),
        Verb("config", "setup.config", "Show, validate and explain experiment configs."),
        Verb("templates", "setup.templates", "Show, copy and render job script templates."),
        Verb("completion", "setup.completion", "Print shell completion for bash, zsh or fish."),
    ),
    "Run": (
        Verb("plan", "run.plan", "Say what a config would do; nothing is made."),
        Verb("simulate", "run.simulate", "Run a search on a simulated cluster."),
        Verb("test", "run.preflight", "Train one batch, validate, save and restore, here and now."),
        Verb("submit", "run.submit", "Make an experiment and queue it."),
        Verb("fork", "run.fork", "Go on with a search in a new experiment."),
        Verb("reproduce", "run.reproduce", "What has changed since a run; the run again."),
    ),
    "Interact": (
        Verb("notebook", "interactive.notebook", "JupyterLab in a job, through ssh."),
        Verb("tensorboard", "interactive.tensorboard", "TensorBoard in a job, through ssh."),
        Verb("shell", "interactive.shell", "A shell in a job, or beside a running trial."),
        Verb("run", "interactive.run", "One command in a job."),
        Verb("serve", "interactive.serve", "A live view in the browser, through ssh."),
    ),
    "Observe": (
        Verb("ls", "observe.list_verb", "List experiments."),
        Verb("status", "observe.observe", "One screen: state, trials, best value, health."),
        Verb("show", "observe.observe", "Everything known of an experiment, trial or attempt."),
        Verb("logs", "observe.logs", "What the ranks printed, across attempts."),
        Verb("best", "observe.best", "The best trial, or the front of several objectives."),
        Verb("metrics", "observe.metrics", "Metrics as rows, last or best values, or a plot."),
        Verb("events", "observe.events", "What happened, in order."),
        Verb("explain", "observe.explain", "Why it is pending, slow or failed, and what to do."),
        Verb(
            "schedule", "observe.schedule", "What a trial was trained with, its parents included."
        ),
        Verb("eff", "observe.eff", "Cores, memory and time: requested, used, and what to ask for."),
        Verb("usage", "weigh.usage", "Slot hours by user, project, account and month."),
        Verb("wait", "observe.follow", "Block until experiments end."),
        Verb("report", "observe.report", "Write an experiment into one HTML file."),
    ),
    "Compare": (
        Verb("compare", "weigh.compare", "Experiments, trials or model versions side by side."),
        Verb("diff", "weigh.diff", "What differs between two experiments or trials."),
        Verb("hp", "weigh.hp", "Which hyperparameters mattered, and their best values."),
        Verb("lineage", "weigh.lineage_tree", "What an experiment or trial came from."),
    ),
    "Control": (
        Verb(
            "cancel",
            "control.control",
            "Save checkpoints, then end experiments or trials for good.",
        ),
        Verb("pause", "control.control", "Save checkpoints, stop, and give the nodes back."),
        Verb("resume", "control.resume_retry", "Go on with what was paused."),
        Verb("retry", "control.resume_retry", "Try failed trials again from their checkpoints."),
        Verb("set", "control.change", "Change limits, name, description or project."),
        Verb("hold", "control.control", "Keep waiting jobs from starting."),
        Verb("release", "control.control", "Let jobs start that were held."),
        Verb("tag", "control.control", "Add or remove labels."),
        Verb("note", "control.control", "Write a note on an experiment."),
    ),
    "Govern": (
        Verb("policy", "govern.policy", "Check, compare, sign, change and report on policies."),
        Verb("ledger", "govern.ledger", "Verify, show and query the ledgers of governed trials."),
        Verb("data", "govern.data", "Make and verify manifests and provenance chains of data."),
    ),
    "Artefacts": (
        Verb("ckpt", "artefacts.ckpt", "List, verify, export, pin and remove checkpoints."),
        Verb("registry", "artefacts.registry", "Named models with versions, aliases and cards."),
        Verb("export", "artefacts.export", "Write experiments for other programs."),
        Verb("import", "artefacts.import_verbs", "Take over experiments of other platforms."),
        Verb("move", "artefacts.folders", "Move an experiment's folder."),
        Verb("archive", "artefacts.folders", "Pack an ended experiment into one file."),
        Verb("rm", "artefacts.folders", "Remove ended experiments."),
    ),
    "Maintain": (
        Verb("searcher", "maintain.searcher", "Run the process that decides for an experiment."),
        Verb("index", "maintain.index", "Update or rebuild the SQLite index, or say where it is."),
        Verb("help", "frame.help", "Help on a verb or a topic: exit-codes, ids."),
        Verb("worker", "maintain.worker", "Run trials inside an allocation.", hidden=True),
    ),
}

VERBS: dict[str, Verb] = {verb.name: verb for verbs in SECTIONS.values() for verb in verbs}
