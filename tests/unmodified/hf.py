"""Hugging Face's ``Trainer`` with Determined's callback, as its examples have it."""

import determined as det
import torch
import transformers
from determined.transformers import DetCallback


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.arange(8) * (index + 1) % 50
        return {"input_ids": ids, "labels": ids}


def main(core_context, arguments, callback):
    transformers.set_seed(arguments.seed)
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=8)
    trainer = transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Words(),
        eval_dataset=Words(),
    )
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    if not core_context.preempt.should_preempt():
        trainer.evaluate()


if __name__ == "__main__":
    arguments = transformers.TrainingArguments(
        output_dir="outputs",
        max_steps=60,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=20,
        logging_steps=10,
        save_steps=10,
        save_total_limit=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    distributed = det.core.DistributedContext.from_torch_distributed()
    with det.core.init(distributed=distributed) as core_context:
        user_data = {"task": "words"}
        callback = DetCallback(
            core_context, arguments, filter_metrics=["loss"], user_data=user_data
        )
        main(core_context, arguments, callback)
