"""A valley that is quickest to descend at a learning rate of 0.3; no framework needed."""

from hpcdet import core


def main(context: core.Context) -> None:
    lr, step, x = context.hparams["lr"], 0, 4.0
    if state := context.checkpoint.latest():
        step, x = state["step"], state["x"]
    while step < context.searcher.length(default=30):
        x -= lr * 2 * x * (1.0 if lr < 0.3 else 3.0)  # too quick, and it overshoots
        step += 1
        context.train.advance(step)
        if step % 10 == 0:
            context.train.report_validation_metrics(step, {"loss": x * x})
        if context.preempt.should_preempt():
            context.checkpoint.save({"step": step, "x": x}, step)
            return
    context.checkpoint.save({"step": step, "x": x}, step)


if __name__ == "__main__":
    with core.init(hparams={"lr": 0.1}) as context:
        main(context)
