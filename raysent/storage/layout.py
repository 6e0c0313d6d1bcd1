"""Names of the files and folders that commands write in a run's folder.

a training   run.json reports.jsonl outcome.json model.json model.safetensors vocabulary.txt checkpoint/
a student    front.json   (a training)
several seeds  seed-0/ seed-1/ ...   (each a training)
a sweep      sweep.json journal.jsonl ledger.jsonl trials.csv lessons.json trials/0000/ ... tensorboard/
             ranking.rows

             divisions/TASK.json TASK.rows TASK.test   (the rows that train and choose, and those that test)
             best/ or best/TASK/ (an ensemble: what to take)   encoder/ (a model: the best with vectors)
             kinds/ (an ensemble of the best trial of each kind of encoder, and kinds.json: what each adds)
             soup/ (a model: the mean of trials' weights, if they share a start and it is better)
             learned/0000/ (a training on all rows of what learned labels)   learned/0000/without-1/ ...
an ensemble  ensemble.json evaluation/ members/a/ ...   (a sweep's own is in its folder)
any of them  evaluation/ report.html
a code       code.json code.safetensors
a composition  composition.json members/a/ ...
vectors      vectors.json NAME.parquet ... cost/
"""

RUN_FILE = "run.json"
REPORTS_FILE = "reports.jsonl"
OUTCOME_FILE = "outcome.json"
MODEL_FILE = "model.json"
TENSORS_FILE = "model.safetensors"
# The report whose model a run has saved before its end.
MODEL_REPORT_FILE = "model_report.json"
VOCABULARY_FILE = "vocabulary.txt"
# Of a run whose first word vectors were counted from its text: those vectors, by dimension.
START_FILE = "start.safetensors"
CHECKPOINT_FOLDER = "checkpoint"
CODE_FILE = "code.json"
# In the folder of trainings that differ in their seed alone: this and the seed.
SEED_FOLDER = "seed-"
COMPOSITION_FILE = "composition.json"
# In the folder of encoders that rank passages together with words.
FUSION_FILE = "fusion.json"

SWEEP_FILE = "sweep.json"
JOURNAL_FILE = "journal.jsonl"
LEDGER_FILE = "ledger.jsonl"
TRIALS_FILE = "trials.csv"
# What a sweep teaches others.
LESSONS_FILE = "lessons.json"
TRIALS_FOLDER = "trials"
# Of a student: its score and time to encode beside those of what it was distilled from.
FRONT_FILE = "front.json"
LOCK_FILE = ".lock"
TENSORBOARD_FOLDER = "tensorboard"
# In the folder of a sweep on a cluster, until its training has ended: prepared text, for all of its machines. The name
# is hidden, so that no working copy has it.
PREPARED_FOLDER = ".prepared"
# In the local folder of a sweep that runs on a cluster: the address of the cluster's folder.
REMOTE_FILE = "remote.json"
# In the cluster's folder: how the sweep was submitted and how it ended; and the request to stop it.
JOB_FILE = "job.json"
STOP_FILE = "stop.json"

EVALUATION_FOLDER = "evaluation"
# The rows of each task of a run: those that train and choose, and those that test, which nothing opens before.
DIVISIONS_FOLDER = "divisions"
ROWS_SUFFIX = ".rows"
TEST_SUFFIX = ".test"
# Some of the former, of all tasks that rank a sweep's trials.
RANKING_ROWS_FILE = "ranking.rows"
ENSEMBLE_FILE = "ensemble.json"
# In a sweep's folder: the ensemble to take, with several tasks one below for each; and the best model with vectors.
BEST_FOLDER = "best"
ENCODER_FOLDER = "encoder"
# Beside them: one model whose weights are the mean of trials', if that is better; and its evaluation.
SOUP_FOLDER = "soup"
# And the best trial of each kind of encoder, combined: an ensemble, with what each kind adds.
KINDS_FOLDER = "kinds"
KINDS_FILE = "kinds.json"
# Beside an answer: what it predicts of each labelled row that did not fit it.
ANSWER_ROWS_FILE = "predicted.npz"
# The best trial that learned labels: trained on all rows, and without each part of them.
LEARNED_FOLDER = "learned"
# What a saved model is and what it is worth.
CARD_FILE = "README.md"
# In an ensemble's folder: members that were in memory. In a composition's: all members.
MEMBERS_FOLDER = "members"
REPORT_FILE = "report.html"
# In an export for sentence-transformers: the parts of its models.
EXPORT_FILE = "raysent.json"
# In a folder of vectors of many files: how they were made.
VECTORS_FILE = "vectors.json"
