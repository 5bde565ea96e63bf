"""The Core API by steps: metrics, checkpoints of files, preemption, hyperparameters, ranks."""

import argparse
import logging
import pathlib

import hpcdet.determined as det


def save_state(x, steps_completed, trial_id, checkpoint_directory):
    checkpoint_directory.joinpath("state").write_text(f"{x},{steps_completed},{trial_id}")


def load_state(trial_id, checkpoint_directory):
    text = pathlib.Path(checkpoint_directory).joinpath("state").read_text()
    x, steps_completed, of_trial = map(int, text.split(","))
    return x, steps_completed if of_trial == trial_id else 0


def main(core_context, latest_checkpoint, trial_id, increment_by):
    x, starting_batch = 0, 0
    chief = core_context.distributed.rank == 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(
            latest_checkpoint, det.core.DownloadMode.LocalWorkersShareDownload
        ) as path:
            x, starting_batch = load_state(trial_id, path)
    for batch in range(starting_batch, 40):
        x += sum(core_context.distributed.allgather(increment_by))
        steps_completed = batch + 1
        if steps_completed % 10 == 0:
            if chief:
                core_context.train.set_status("reporting")
                core_context.train.report_training_metrics(
                    steps_completed=steps_completed, metrics={"x": x}, batch_metrics=[{"x": x}]
                )
                core_context.train.report_progress(steps_completed / 40.0)
                core_context.train.report_validation_metrics(
                    steps_completed=steps_completed, metrics={"x": x, "batches": steps_completed}
                )
                metadata = {"steps_completed": steps_completed}
                with core_context.checkpoint.store_path(metadata) as (path, _uuid):
                    save_state(x, steps_completed, trial_id, path)
            if core_context.preempt.should_preempt():
                return
    core_context.alert(title="end of main", description=f"x is {x}", level="debug")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    parser = argparse.ArgumentParser()
    parser.add_argument("--distributed", action="store_true")
    args = parser.parse_args()
    info = det.get_cluster_info()
    assert info is not None, "this example only runs on-cluster"
    given = det.core.DistributedContext.from_torch_distributed() if args.distributed else None
    with det.core.init(
        distributed=given,
        preempt_mode=det.core.PreemptMode.WorkersAskChief,
        tensorboard_mode=det.core.TensorboardMode.MANUAL,
    ) as core_context:
        main(
            core_context=core_context,
            latest_checkpoint=info.latest_checkpoint,
            trial_id=info.trial.trial_id,
            increment_by=info.trial.hparams["increment_by"],
        )
