"""`fit`: train one run. Step, validate, save and report until the run is done, stopped or no longer finite."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysent.data.vocabulary import Sentences
from raysent.errors import ConfigError, TrainingError
from raysent.kernels.devices import (
    default_device,
    deterministic,
    is_gpu,
    set_matmul_precision,
)
from raysent.platforms import trim_heap
from raysent.storage import address_of, append_json_line, refresh, remove, write_json_lines
from raysent.storage.layout import (
    CHECKPOINT_FOLDER,
    MODEL_FILE,
    MODEL_REPORT_FILE,
    OUTCOME_FILE,
    REPORTS_FILE,
)
from raysent.training.checkpoint import (
    Heartbeat,
    LiveProgress,
    Progress,
    drop_checkpoints,
    load_checkpoint,
    save_checkpoint,
    steps_lost,
)
from raysent.training.data import TrainingData, open_training_data
from raysent.training.gpu_use import measured_use
from raysent.training.interruptions import Interruptions, ModelsAtReports, SaveTimer
from raysent.training.late_loss import LateLoss
from raysent.training.memory import limit_primitive_cache, resident_bytes
from raysent.training.optimization import MovingAverage, Optimizer, count_drops, strip_prefix
from raysent.training.outcome import (
    OnReport,
    Outcome,
    Report,
    Status,
    ended_outcome,
    load_model_report,
    save_model_report,
    save_outcome,
)
from raysent.training.plan import (
    build_model,
    count_steps,
    keep_counted_vectors,
    open_stream,
    open_validator,
    report_index,
)
from raysent.training.run import RunConfig, as_begun, save_run
from raysent.training.source_vectors import open_source_vectors
from raysent.training.validation.names import METRICS
from raysent.training.workers import SharedLoss, Workers

# Steps between two checks of the loss on a GPU.
_STEPS_PER_LOSS_CHECK = 25
# Steps that the time of a step is measured in, the seconds that they may take, and those that fewer may take.
_TIMED_STEPS = 12
_TIMED_S = 2.0
_TIMED_MOST_S = 15.0


def fit(
    config: RunConfig,
    folder: Path,
    *,
    report: OnReport = lambda _: True,
    device: torch.device | None = None,
    workers: Workers | None = None,
    interruptions: Interruptions | None = None,
) -> Outcome:
    """Train one run in its folder, from its last checkpoint if there is one.

    The same configuration on the same text gives the same weights, whether or not the run was killed and resumed. When
    the run has ended, the folder holds the model of its last report, which `load` reads. A run that has ended is not
    trained again; a run that was stopped is resumed. A resumed run calls `report` with its last report again, because
    the caller may not have received it.

    Args:
        config: The run.
        folder: Where its files are; created if necessary. On several nodes, a shared folder.
        report: Called on every worker after each validation; the run stops where it returns False on the first worker.
        device: Where to compute; by default the GPU if there is one.
        workers: This process's rank among several; by default it is the only one.
        interruptions: The interruptions to expect; by default none.

    Returns:
        How the run ended; the same on every worker.

    Raises:
        ConfigError: If the batch has less than one sentence for each worker.
        DataError: If the corpus cannot be read, or is smaller than one batch.
        ArtifactError: If the folder cannot be written, or holds files of another run or text.
        TrainingError: If the workers' weights differ at a report, or a step does not fit into the memory of a GPU.
    """
    limit_primitive_cache()
    set_matmul_precision()
    workers = workers or Workers()
    device = device or default_device()
    earlier_outcome = ended_outcome(folder, key=config.key)
    if earlier_outcome is not None:
        return earlier_outcome
    config = as_begun(config, folder)
    interruptions = interruptions or Interruptions()
    with measured_use(config, device), deterministic(device):
        outcome, is_saved = _fit(config, folder, report, device, workers, interruptions)
        if not is_saved:
            # The weights have gone past the last report: the steps up to it are repeated, which gives the same bits.
            refresh(folder, with_checkpoints=True)
            interruptions = replace(interruptions, models="none")
            _, is_saved = _fit(
                config,
                folder,
                lambda now: now.step < outcome.step,
                device,
                workers,
                interruptions,
                until=outcome,
            )
        if not is_saved:
            raise TrainingError(
                f"{address_of(folder)}: repeated steps gave other weights; train it again"
            )
    return outcome


def _fit(
    config: RunConfig,
    folder: Path,
    report: OnReport,
    device: torch.device,
    workers: Workers,
    interruptions: Interruptions,
    *,
    until: Outcome | None = None,
) -> tuple[Outcome, bool]:
    """Train a run that has not ended; `until` and the result are those of `_Training.run`."""
    training_data = open_training_data(config)
    training = _Training(config, training_data, device=device, workers=workers)
    if workers.is_first:
        keep_counted_vectors(config, training_data, folder)
    del training_data
    try:
        return training.run(folder, report, interruptions, until=until)
    finally:
        training.close()
        del training
        gc.collect()  # what a step is made of refers to itself
        trim_heap()


def seconds_of_steps(config: RunConfig, training_data: TrainingData) -> tuple[float, float]:
    """Return the seconds of one step and of one validation on this machine, from some that are thrown away.

    Word vectors that a run counts from its text are drawn at random here: a step takes as long with them.
    """
    limit_primitive_cache()
    set_matmul_precision()
    device = default_device()
    training = _Training(
        config, training_data, device=device, workers=Workers(), is_only_timed=True
    )
    try:
        with measured_use(config, device), deterministic(device):
            return training.timed()
    finally:
        training.close()
        del training
        gc.collect()
        trim_heap()


class _Training:
    def __init__(
        self,
        config: RunConfig,
        training_data: TrainingData,
        *,
        device: torch.device,
        workers: Workers,
        is_only_timed: bool = False,
    ) -> None:
        self._config = config
        self._device = device
        self._workers = workers
        self._text_key = training_data.facts().get("key")
        self._stream = open_stream(config, training_data, workers)
        self._num_steps = count_steps(config.training, steps_per_epoch=self._stream.num_batches)
        self._validator = open_validator(config, training_data)
        # What encodes the text once for its code keeps these vectors, and the trials read them again.
        counts_vectors = config.objective.trains_code or not is_only_timed
        model = build_model(config, training_data, counts_vectors=counts_vectors)
        self._model = model.to(device)
        source_vectors = open_source_vectors(
            config, self._model, self._stream, self._validator.held_out, num_steps=self._num_steps
        )
        if source_vectors is not None:
            self._model.use_known_vectors(source_vectors)
        self._sample = self._fit_parts_without_steps(training_data)
        self._optimizer = Optimizer(
            self._model,
            config.training,
            num_steps=self._num_steps,
            steps_per_epoch=self._stream.num_batches,
        )
        if config.training.compile:
            for tower in self._model.towers:
                tower.compile_layers()
        self._average: MovingAverage | None = None
        if config.training.ema is not None:
            self._average = MovingAverage(self._optimizer.parameters, decay=config.training.ema)
        use_bfloat16 = config.training.precision == "bfloat16"
        if config.training.precision == "auto" and device.type == "cuda":
            use_bfloat16 = torch.cuda.is_bf16_supported()
        self._loss = SharedLoss(
            config,
            self._model,
            self._optimizer,
            stream=self._stream,
            workers=workers,
            device=device,
            bfloat16=use_bfloat16,
        )
        self._progress = Progress(num_steps=self._num_steps)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._num_losses = 0
        self._late_loss = LateLoss(device)
        self._models: ModelsAtReports = "none"
        # The step of the last model that was saved before a report; 0 without one.
        self._model_step = 0

    def _fit_parts_without_steps(self, training_data: TrainingData) -> Sentences | None:
        """Fit the code, and return the sample that postprocessing is fitted to at each report; None without it."""
        is_fitted = self._model.postprocessing.is_fitted_to_text
        code = self._config.code
        if not is_fitted and (code is None or not code.is_fitted):
            return None
        sample = training_data.sample(self._config.postprocessing.num_sentences)
        # Only a code needs the postprocessing before the first report.
        if code is not None:
            self._model.eval()
            if is_fitted:
                self._model.fit_postprocessing(sample)
            self._model.fit_code(sample)
        return sample if is_fitted else None

    # -- the whole run ------------------------------------------------------------------------------------------

    def run(
        self, folder: Path, report: OnReport, interruptions: Interruptions, *, until: Outcome | None
    ) -> tuple[Outcome, bool]:
        """Train from the folder's last checkpoint to the end.

        Args:
            folder: The run's.
            report: As for `fit`.
            interruptions: As for `fit`.
            until: The outcome of a run whose model is to be made again: only checkpoints up to its step are read.

        Returns:
            How the run ended, and whether its model and its outcome are saved: not if the weights are past the last
            report or no longer finite. The same on every worker.
        """
        self._models = interruptions.models
        self._resume(folder, max_step=None if until is None else until.step)
        if self._workers.is_first:
            save_run(self._config, folder)
            self._heartbeat = Heartbeat(folder)
            self._heartbeat.write(self._progress, self._live_progress(self._progress.seconds))
            self._remove_ended(folder)
            # The file of reports agrees with the checkpoint that is resumed.
            write_json_lines(folder / REPORTS_FILE, self._progress.reports)
        self._model_step = self._workers.agree(self._model_step, self._device)
        status = self._train(folder, report, interruptions)
        outcome = until or self._outcome(status)
        is_at_hand = status != "nan" and self._progress.step == outcome.step
        if outcome.step not in (0, self._model_step):
            if not is_at_hand:
                return outcome, False
            self._save_model(folder)
        if self._workers.is_first:
            save_outcome(outcome, folder, key=self._config.key)
            remove(folder / MODEL_REPORT_FILE)
            if outcome.status == "finished":
                drop_checkpoints(folder)
        return outcome, True

    def _train(self, folder: Path, report: OnReport, interruptions: Interruptions) -> Status:
        num_reports = self._config.training.num_reports
        if self._progress.reports:
            # The caller may not have received it.
            last_report = Report(**self._progress.reports[-1])
            if not self._should_continue(last_report, report):
                return "stopped"
        timer = SaveTimer(
            interruptions,
            step=self._progress.step,
            seconds=self._progress.seconds,
            save_bytes=sum(tensor.nbytes for tensor in self._checkpoint_tensors().values()),
        )
        is_finite = True
        while self._progress.step < self._num_steps:
            self._step()
            step = self._progress.step
            index = report_index(step, num_steps=self._num_steps, num_reports=num_reports)
            index_before = report_index(
                step - 1, num_steps=self._num_steps, num_reports=num_reports
            )
            is_due = index > index_before
            if is_due:
                is_finite = self._is_finite()
            elif not is_gpu(self._device) or step % _STEPS_PER_LOSS_CHECK == 0:
                is_finite = math.isfinite(self._seen_loss()[0])
            if not is_finite:
                return "nan"
            if is_due:
                status = self._report(index, folder, report, timer)
                if status != "finished":
                    return status
            elif step >= timer.next_check and not self._check_interruptions(folder, timer):
                return "nan"
        return "finished"

    def _check_interruptions(self, folder: Path, timer: SaveTimer) -> bool:
        """Save if an interruption is near or likely; returns whether all is finite. All workers call it together."""
        is_due = bool(self._workers.agree(int(timer.is_due()), self._device))
        timer.next_check = self._workers.agree(
            timer.next_check_step(self._progress.step), self._device
        )
        if self._workers.is_first:
            self._heartbeat.write(self._progress, self._live_progress(timer.seconds))
        if not is_due:
            return True
        if not (self._is_finite() and self._has_finite_weights()):
            return False
        self._progress = replace(self._progress, seconds=timer.seconds)
        self._save_checkpoint(folder, timer)
        return True

    def _seen_loss(self) -> tuple[float, int]:
        """Return the sum and the number of the losses since the last report, without waiting for a GPU."""
        return self._late_loss.seen(self._loss_sum, self._num_losses)

    def _live_progress(self, seconds: float) -> LiveProgress:
        total, count = self._seen_loss()
        loss = None
        if count and math.isfinite(total / count):
            loss = total / count
        return LiveProgress(
            step=self._progress.step,
            num_steps=self._num_steps,
            sentences=self._progress.sentences,
            seconds=round(seconds, 3),
            loss=loss,
            memory_bytes=resident_bytes(),
        )

    def close(self) -> None:
        """End the thread that prepares steps, if there is one."""
        self._loss.close()

    def timed(self) -> tuple[float, float]:
        """Return the median seconds of a step after two, if there are more, and of a validation; changes the model."""
        step_seconds: list[float] = []
        most_s = _TIMED_MOST_S
        started = time.perf_counter()
        while time.perf_counter() - started < most_s:
            before = time.perf_counter()
            self._step()
            float(self._loss_sum)  # waits for a GPU
            step_seconds.append(time.perf_counter() - before)
            if len(step_seconds) >= _TIMED_STEPS:
                most_s = _TIMED_S
        before = time.perf_counter()
        self._metrics()
        validation_seconds = time.perf_counter() - before
        # The first steps allocate memory and choose kernels.
        return statistics.median(step_seconds[2:] or step_seconds), validation_seconds

    # -- one step -----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        step = self._progress.step
        self._model.train()
        self._model.before_step(step / self._num_steps)
        self._optimizer.zero_grad()
        loss = self._gradients(step)
        self._optimizer.step(step)
        self._model.after_step()
        if self._average is not None:
            self._average.update(step + 1)
        self._loss_sum += loss
        self._num_losses += 1
        num_sentences = self._progress.sentences + self._stream.size(step)
        self._progress = replace(self._progress, step=step + 1, sentences=num_sentences)

    def _gradients(self, step: int) -> Tensor:
        """Compute the gradients of a step; where memory is full, once more with smaller groups, if there are any."""
        try:
            return self._loss.gradients(step)
        except torch.OutOfMemoryError:
            if self._workers.world_size > 1 or not self._model.use_small_groups():
                raise
        # What the failed step held is freed here, after its exception.
        self._optimizer.zero_grad()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return self._loss.gradients(step)

    def _is_finite(self) -> bool:
        """Return whether every loss since the last report is finite; the same on every worker."""
        return math.isfinite(float(self._loss_sum))

    # -- validation, checkpoint, report -------------------------------------------------------------------------

    def _report(self, index: int, folder: Path, report: OnReport, timer: SaveTimer) -> Status:
        # On all workers, so that the rows of their word tables are updated alike.
        self._optimizer.flush()
        self._workers.check_weights(self._optimizer.parameters, step=self._progress.step)
        measured: dict[str, float] = {}
        if self._workers.is_first:
            measured = {"seconds": timer.seconds, **self._metrics()}
        metrics = self._workers.share(measured, self._device)
        seconds = metrics.pop("seconds")
        self._loss_sum.zero_()
        self._num_losses = 0
        if not all(math.isfinite(score) for score in metrics.values()):
            return "nan"
        now = Report(
            index=index,
            num_reports=self._config.training.num_reports,
            step=self._progress.step,
            num_steps=self._num_steps,
            sentences=self._progress.sentences,
            seconds=seconds,
            metrics=metrics,
            steps_lost=self._progress.steps_lost,
        )
        self._progress = replace(
            self._progress, seconds=seconds, reports=(*self._progress.reports, asdict(now))
        )
        self._count_drops()
        if timer.is_due_at_report():
            self._save_checkpoint(folder, timer)
        if self._wants_model(now, timer):
            started = time.perf_counter()
            self._keep_model(now, folder)
            timer.record_model(took_s=time.perf_counter() - started)
        if self._workers.is_first:
            append_json_line(folder / REPORTS_FILE, asdict(now))
        if not self._should_continue(now, report):
            return "stopped"
        return "finished"

    def _wants_model(self, now: Report, timer: SaveTimer) -> bool:
        """Return whether the model is saved before a report; the same on every worker."""
        if self._models != "some":
            return self._models == "all"
        if now.step <= self._model_step:
            # A resumed run repeats steps: the model of a later report is there.
            return False
        if self._model_step == 0:
            return True
        return bool(self._workers.agree(int(timer.is_model_due()), self._device))

    def _keep_model(self, now: Report, folder: Path) -> None:
        """Save the model of a report, and record that it is."""
        self._save_model(folder)
        if self._workers.is_first:
            save_model_report(now, folder)
        self._model_step = now.step

    def _count_drops(self) -> None:
        """Let the learning rate depend on the reports so far; all workers have the same."""
        name = next(iter(self._config.metrics), None)
        if name is not None:
            scores = [report["metrics"][name] for report in self._progress.reports]
            self._optimizer.num_drops = count_drops(scores, mode=METRICS[name])

    def _should_continue(self, now: Report, report: OnReport) -> bool:
        """Call `report` on every worker and return the first worker's answer."""
        return bool(self._workers.agree(int(report(now)), self._device))

    def _metrics(self) -> dict[str, float]:
        """Return the metrics of validation and the mean loss; NaN for all where the weights are not finite."""
        self._optimizer.flush()
        self._model.eval()
        if not self._has_finite_weights():
            return {**dict.fromkeys(self._config.metrics, math.nan), "loss": math.nan}
        with self._averaged(), torch.no_grad():
            if self._sample is not None:
                self._model.fit_postprocessing(self._sample)
            scores = self._validator.metrics_of(self._model)
        return {**scores, "loss": float(self._loss_sum) / self._num_losses}

    def _has_finite_weights(self) -> bool:
        # The extremes of a tensor are NaN if one of its values is; they are found in one pass.
        extremes = [
            torch.stack(torch.aminmax(parameter))
            for parameter in self._model.parameters()
            if parameter.numel()
        ]
        return all(bool(torch.isfinite(pair).all()) for pair in extremes)

    def _save_checkpoint(self, folder: Path, timer: SaveTimer) -> None:
        if not self._workers.is_first:
            return
        started = time.perf_counter()
        # 0 after a report; between two reports a part of the next report's mean loss.
        progress = replace(
            self._progress, loss_sum=float(self._loss_sum), num_losses=self._num_losses
        )
        save_checkpoint(
            folder,
            self._checkpoint_tensors(),
            progress,
            key=self._config.key,
            text=self._text_key,
        )
        timer.record_save(took_s=time.perf_counter() - started)

    def _checkpoint_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint by name, in the order in which they are written."""
        parts = {"model": self._model.tensors()}
        if self._average is not None:
            parts["average"] = self._average.tensors()
        parts["optimizer"] = self._optimizer.tensors()
        return {
            f"{part}.{name}": tensor
            for part, tensors in parts.items()
            for name, tensor in tensors.items()
        }

    def _save_model(self, folder: Path) -> None:
        if self._workers.is_first:
            with self._averaged():
                self._model.save(folder)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        """Give the model the average's weights inside the block, where the run has one."""
        if self._average is None:
            return contextlib.nullcontext()
        return self._average.in_use()

    # -- start and end ------------------------------------------------------------------------------------------

    def _resume(self, folder: Path, *, max_step: int | None) -> None:
        saved = load_checkpoint(
            folder, key=self._config.key, text=self._text_key, max_step=max_step
        )
        if saved is None:
            self._progress = replace(self._progress, steps_lost=steps_lost(folder, self._progress))
            return
        tensors, progress = saved
        if progress.num_steps not in (0, self._num_steps):
            raise ConfigError(
                f"workers {self._workers.world_size}: must be as many as this run began with, since its batches depend "
                f"on them: it has {progress.num_steps} steps, and {self._num_steps} with these; {address_of(folder)}"
            )
        self._progress = replace(progress, steps_lost=steps_lost(folder, progress))
        self._model.load_tensors(strip_prefix(tensors, "model."), source=folder / CHECKPOINT_FOLDER)
        self._optimizer.load_tensors(strip_prefix(tensors, "optimizer."))
        if self._average is not None:
            self._average.load_tensors(strip_prefix(tensors, "average."))
        self._loss_sum.fill_(progress.loss_sum)
        self._num_losses = progress.num_losses
        self._count_drops()

    def _remove_ended(self, folder: Path) -> None:
        """Remove what is not true once a stopped run is resumed: its outcome, and its model unless reports save it."""
        remove(folder / OUTCOME_FILE)
        if self._models == "none":
            remove(folder / MODEL_FILE)
            return
        model_report = load_model_report(folder)
        if model_report is not None:
            self._model_step = model_report.step
            return
        remove(folder / MODEL_FILE)
        last = self._last_report
        if last.get("step") == self._progress.step:
            self._keep_model(Report(**last), folder)

    @property
    def _last_report(self) -> dict[str, Any]:
        """The last report, as plain values; empty before the first one."""
        if not self._progress.reports:
            return {}
        return self._progress.reports[-1]

    def _outcome(self, status: Status) -> Outcome:
        """Return how the run ended; of a run that failed, with the model of its last report."""
        last = self._last_report
        step = last.get("step", 0)
        message = ""
        if status == "nan":
            model = f"the model of step {step} is kept" if step else "no model could be kept"
            message = (
                f"the loss or the weights are no longer finite; {model}; lower training.learning_rate or "
                "training.clip"
            )
        return Outcome(
            status=status,
            step=step,
            num_steps=self._num_steps,
            sentences=last.get("sentences", 0),
            seconds=last.get("seconds", 0.0),
            metrics=dict(last.get("metrics", {})),
            pool=self._validator.as_json(),
            message=message,
        )
