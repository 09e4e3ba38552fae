"""The `libra` command: verbs and their options; what they do is imported only when they are called."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from experiments.fidelity_verbs import fidelity_app
from experiments.options import STORE, CellArgument, JsonOption, PluginOption, StoreOption

app = typer.Typer(
    name="libra",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Bench for resource management in agentic RL post-training: Libra beside its rivals, on a simulated cluster.",
)

data_app = typer.Typer(no_args_is_help=True, help="Public data sets for live runs.")
app.add_typer(data_app, name="data", rich_help_panel="Data")
app.add_typer(fidelity_app, name="fidelity", rich_help_panel="Check")

EXIT_INTERRUPTED = 130


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"libra-bench {version('libra-bench')}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the verb."""


class Launcher(StrEnum):
    inline = "inline"
    processes = "processes"


class Device(StrEnum):
    cuda = "cuda"
    cpu = "cpu"


FORMATS = (
    "Dump format, or `auto`: areal, atif, inspect-ai, kv-cache-tester, mini-swe-agent, normalized, openai, openhands, "
    "prime-rl, search-r1, slime, swe-agent, verl."
)
"""A copy of the importers' names, held equal by a test: to ask for them would make `--help` wait."""


@app.command(rich_help_panel="Run")
def demo(
    store: StoreOption = STORE,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 takes one a core.")] = 0,
) -> None:
    """Three workloads through five systems, short, to a report: the first minute."""
    from experiments.commands import runs

    runs.demo(store, workers)


@app.command(rich_help_panel="Run")
def run(
    study: Annotated[str, typer.Argument(help="Study (see `libra list study`).")],
    store: StoreOption = STORE,
    seeds: Annotated[int | None, typer.Option(min=1, help="Paired seeds; default is the study's.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps a run, spread over the whole drift.")] = None,
    only: Annotated[str | None, typer.Option(help="Selector, e.g. 'policy=libra,workload=r2e-gym,seed<3'.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE: cluster, model or an option (see `libra list option`); repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Hold runs to the simulator's laws: sim.check=true.")] = False,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Canonical trace or recording for study `traces`; repeatable.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy beside the study's own, for example a plug-in's; repeatable.")
    ] = None,
    launcher: Annotated[Launcher, typer.Option(help="How cells are run.")] = Launcher.processes,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 takes one a core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells and stop.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    plugin: PluginOption = None,
    json: JsonOption = False,
) -> None:
    """Run a study's cells; done ones are skipped, so an interrupted study resumes."""
    from experiments.commands import runs

    set_ = (*(changes or ()), *(("sim.check=true",) if check else ()))
    files = tuple(trace or ()), tuple(plugin or ()), tuple(policy or ())
    asked = runs.Request(study, store, seeds, steps, only, set_, *files)
    runs.run(asked, launcher.value, workers, dry_run=dry_run, retry_failed=retry_failed, as_json=json)


@app.command(rich_help_panel="Run")
def train(
    workload: Annotated[str, typer.Argument(help="search-r1, r2e-gym, dapo-math, or a plug-in's.")],
    cluster: Annotated[str, typer.Option(help="Cluster, or a TOML file with a [live] section.")] = "cpu2",
    model: Annotated[str, typer.Option(help="Model of the planner's figures, or a TOML file.")] = "tiny",
    policy: Annotated[str, typer.Option(help="System that plans and routes.")] = "libra",
    seed: Annotated[int, typer.Option(min=0, help="Seed of policy, tasks and their order.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps (live.num_steps).")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE, for example live.samples=8; repeatable.")
    ] = None,
    store: StoreOption = STORE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, print the cell and stop.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")] = False,
    plugin: PluginOption = None,
) -> None:
    """Train for real: vLLM engines, verl's trainer, real tools, on a cluster file's machines."""
    from experiments.commands import live

    live.train(
        live.Request(workload, cluster, model, policy, seed, steps, tuple(changes or ()), store, tuple(plugin or ())),
        dry_run=dry_run,
        retry_failed=retry_failed,
    )


@app.command(rich_help_panel="Run")
def plan(
    workload: Annotated[str | None, typer.Argument(help="search-r1, r2e-gym, dapo-math.")] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Rollout dump, canonical trace or `recorded:WORKLOAD`; a run with --backtest."),
    ] = None,
    rollout_s: Annotated[float | None, typer.Option(help="Seconds of rollout in a step.")] = None,
    train_s: Annotated[float | None, typer.Option(help="Seconds of training in a step.")] = None,
    gpus: Annotated[str | None, typer.Option(help="ROLLOUT:TRAIN, or one number when both use the same.")] = None,
    pipeline: Annotated[str, typer.Option(help="serial (stage times only), colocated, barrier or async.")] = "",
    longest_s: Annotated[float, typer.Option(help="With stage times: seconds of the longest trajectory.")] = 0.0,
    move_s: Annotated[float, typer.Option(help="Stage times, backtest: stall that changing the split costs.")] = 60.0,
    cluster: Annotated[str, typer.Option(help="Cluster, or a TOML file.")] = "a800x48",
    model: Annotated[str, typer.Option(help="Model, or a TOML file.")] = "qwen3-14b",
    batch: Annotated[int | None, typer.Option(min=1, help="Trajectories a training step.")] = None,
    emit: Annotated[str, typer.Option(help="Print the plan as settings for verl, areal, slime or vllm.")] = "",
    backtest: Annotated[
        bool, typer.Option("--backtest", help="Calibrate on earlier runs, predict later ones blind, then recommend.")
    ] = False,
    calibrate_on: Annotated[
        int | None, typer.Option(min=1, help="With --backtest: earlier runs; default is half, rounded up.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="With --backtest: steps that GPU hours are told for.")] = 100,
    json: JsonOption = False,
) -> None:
    """Best plan, runners-up and a bound: from a workload, a rollout dump, or the two stage times of a step."""
    from experiments.commands import plan as command

    if backtest:
        from experiments.commands.backtest import Ask, plan_backtest, refuse_beside

        refuse_beside(workload, emit, rollout_s, train_s, gpus)
        return plan_backtest(Ask(tuple(sources or ()), pipeline, calibrate_on, steps, move_s), as_json=json)
    source = command.one_source(sources or [])
    if rollout_s is None and train_s is None and gpus is None:
        job = command.Job(workload, source, cluster, model, pipeline, batch)
        return command.plan_job(job, emit=emit, as_json=json)
    command.refuse_lengths(workload, source, emit)
    from experiments.commands.plan_stages import Times, plan_times

    plan_times(Times(rollout_s, train_s, gpus, longest_s, pipeline, move_s), as_json=json)


@app.command("list", rich_help_panel="Look")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="policy, workload, study, cluster, model, importer, metric or option; all when left out."),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="A policy or workload, whose options are wanted.")] = None,
    plugin: PluginOption = None,
    json: JsonOption = False,
) -> None:
    """Policies, workloads, studies, clusters, models, importers, metrics: what there is."""
    from experiments.commands import look

    look.list_(kind, name, tuple(plugin or ()), as_json=json)


@app.command(rich_help_panel="Look")
def status(
    study: Annotated[str | None, typer.Argument(help="One study; all when left out.")] = None,
    store: StoreOption = STORE,
    json: JsonOption = False,
) -> None:
    """How far each study is, and why cells failed."""
    from experiments.commands import look

    look.status(study, store, as_json=json)


@app.command(rich_help_panel="Look")
def show(cell: CellArgument, store: StoreOption = STORE, json: JsonOption = False) -> None:
    """One cell: what was run, its metrics with definitions, its provenance."""
    from experiments.commands import look

    look.show(cell, store, as_json=json)


@app.command("import", rich_help_panel="Data")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=FORMATS)],
    files: Annotated[list[Path], typer.Argument(help="Dump files or folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Canonical trace: .jsonl.gz or .parquet.")],
    json: JsonOption = False,
) -> None:
    """A framework's rollout dump -> canonical trace, with what could not be read (`libra list importer` says more)."""
    from experiments.commands import data

    data.import_(format_name, files, out, as_json=json)


@app.command(rich_help_panel="Check")
def replay(
    cell: CellArgument, store: StoreOption = STORE, plugin: PluginOption = None, json: JsonOption = False
) -> None:
    """Feed a recorded event log through the policy again and compare every command (exit 3 on a difference)."""
    from experiments.commands import data

    data.replay(cell, store, tuple(plugin or ()), as_json=json)


@app.command(rich_help_panel="Data")
def trace(
    cell: CellArgument,
    store: StoreOption = STORE,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Default: CELL.perfetto.json.gz here.")] = None,
) -> None:
    """A cell's timeline for Perfetto (ui.perfetto.dev): engines, trainer, tools."""
    from experiments.commands import data

    data.trace(cell, store, out)


@data_app.command()
def prepare(
    workload: Annotated[str, typer.Argument(help="search-r1 or dapo-math.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the data; an unfinished one goes on.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be downloaded and written.")] = False,
) -> None:
    """Download a workload's public data set and convert it, with checksums (needs huggingface_hub and a network)."""
    from experiments.commands import data

    data.prepare(workload, out, dry_run=dry_run)


@app.command(rich_help_panel="Data")
def record(
    cell: CellArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Canonical trace: .jsonl.gz or .parquet.")],
    store: StoreOption = STORE,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Trajectories at most: whole groups, spread over the run; default all.")
    ] = None,
) -> None:
    """What a cell's engines and tools did, live or simulated, as a canonical trace to study or play again."""
    from experiments.commands import record
    from libra.results.store import Store

    record.record(Store(store, create=False).find(cell), out, limit)


@app.command(rich_help_panel="Results")
def figures(
    store: StoreOption = STORE,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for SVG and PNG.")] = Path("figures"),
    only: Annotated[list[str] | None, typer.Option(help="Figure name; repeatable.")] = None,
) -> None:
    """Regenerate the paper's figures from the store, the paper's own numbers as hollow markers."""
    from experiments.commands import results

    results.figures(store, out, tuple(only or ()))


@app.command(rich_help_panel="Results")
def claims(store: StoreOption = STORE, json: JsonOption = False) -> None:
    """Every number that the paper reports, and what our runs say of it."""
    from experiments.commands import results

    results.claims(store, as_json=json)


@app.command(rich_help_panel="Results")
def report(
    store: StoreOption = STORE,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for report.html and its figures.")] = Path("report"),
) -> None:
    """One self-contained HTML page: comparison, figures, claims, definitions."""
    from experiments.commands import results

    results.report(store, out)


@app.command(rich_help_panel="Data")
def calibrate(
    device: Annotated[Device, typer.Option(help="What is timed.")] = Device.cuda,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for all points; fewer are timed in less.")] = 10.0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Table of measured points; an existing one goes on.")] = Path(
        "measured.csv"
    ),
    cluster: Annotated[
        str | None, typer.Option(help="Cluster (name or file) with the device's data sheet; cpu2 on the CPU.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model whose shapes and steps are timed.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be timed, and for how long.")] = False,
) -> None:
    """Time this machine's GPUs into the table that calibrates the simulator for them (needs torch)."""
    from experiments.commands import calibrate as command

    command.calibrate(command.Request(device.value, minutes, out, cluster, model), dry_run=dry_run)


@app.command(rich_help_panel="Results")
def validate(
    store: StoreOption = STORE,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="A GPU with a table of its own, by name or by the path of a cluster file."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """The simulator's times beside measured ones: errors by source, and the gates; exit 3 when one is missed."""
    from experiments.commands import check

    if gpu is None:
        check.validate(store, as_json=json)
    else:
        check.validate_gpu(gpu, as_json=json)


def main(argv: list[str] | None = None) -> None:
    """Entry point: errors that a user can mend are one message and an exit code, never a traceback."""
    from libra.core.errors import LibraError

    try:
        app(argv, standalone_mode=True)
    except LibraError as error:
        print(f"libra: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("libra: interrupted; what was stored is kept, the same command goes on from there", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
