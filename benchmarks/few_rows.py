import sys, json, shutil, pandas as pd, numpy as np
from pathlib import Path
import benchmarks.label_sweeps as L
from raysent.evaluation.evaluate import Evaluator
from raysent.evaluation.members import expand
from raysent.evaluation.baselines import is_free
from raysent.evaluation.task_files import OwnTask
from raysent.ensembles.task_ensemble import fold_predictions
from raysent.ensembles.cross_fitting import cross_fit
from raysent.ensembles.pools import LogarithmicPool


def logp(x):
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


T = np.exp(np.linspace(np.log(0.25), np.log(8), 26))


def temp(lp, y):  # MAP: prior towards 1
    nl = [-logp(lp * t)[np.arange(len(y)), y].sum() + 0.5 * np.log(t) ** 2 for t in T]
    return T[int(np.argmin(nl))]


for name in sys.argv[1].split(","):
    frame = L.read_table(name, Path("DATA")).sample(frac=1, random_state=7)
    fresh, rest = frame[1800:2800], frame[2800:]
    for draw in (1, 2, 3):
        models = L.base_models(Path(f"OUT/base-{draw}"), within=None)[:3]
        for kind, n in (
            ("whole", 32),
            ("whole", 100),
            ("whole", 200),
            ("whole", 300),
            ("divided", 100),
            ("divided", 300),
            ("divided", 500),
            ("divided", 1000),
        ):
            out = Path(f"ROWS/{name}-{draw}-{kind}-{n}.json")
            if out.exists():
                continue
            rows = rest.sample(n, random_state=1000 * draw + n)[["text_a", "label"]].copy()
            k = round(0.2 * n) if kind == "divided" else 0
            rows["split"] = ["validation"] * k + ["train"] * (n - k)
            keep = set(rows[rows.split == "train"].label)
            te = fresh[fresh.label.isin(keep)]
            rows = rows[rows.label.isin(keep)]
            w = Path(f"ROWS/w-{name}")
            shutil.rmtree(w, ignore_errors=True)
            w.mkdir()
            pd.concat([rows, te[["text_a", "label"]].assign(split="test")]).to_csv(w / "t.csv", index=False)
            task = OwnTask(str(w / "t.csv"), name="t", text="text_a", label="label", split="split")
            ev = Evaluator(w / "e", divides=True)
            trials = expand(models)
            others = ev.baselines(trials, [task])
            recs = {m: r[0] for m, r in ev.records([*trials, *others], [task]).items()}
            best = max(trials, key=lambda m: recs[m].validation)
            names = [m for m in recs if m.path in ("tfidf", "tfidf:chars") or is_free(m.path)] + [best]
            rs = [recs[m] for m in names]
            P, Y = fold_predictions(rs, 0)
            y = Y.labels
            tt = rs[0].targets.take(rs[0].folds[0].test_rows).labels
            V = [r.folds[0].validation_log_probabilities for r in rs]
            X = [r.folds[0].test_log_probabilities for r in rs]
            acc = lambda p: float((p.argmax(1) == tt).mean() * 100)
            res = {
                "members": [m.name for m in names],
                "alone": [acc(x) for x in X],
                "val": [float((v.argmax(1) == y).mean() * 100) for v in V],
                "rows": len(y),
            }
            for m in ("greedy", "pool", "validation"):
                f = cross_fit(P, Y, method=m)
                res[m] = acc(f.predict(X))
                res[m + " val"] = float((f.held_out.argmax(1) == y).mean() * 100)
            ts = [temp(v, y) for v in V]
            res["temps"] = [float(t) for t in ts]
            Vt = [logp(v * t) for v, t in zip(V, ts)]
            Xt = [logp(x * t) for x, t in zip(X, ts)]
            res["calibrated mean"] = acc(sum(np.exp(x) for x in Xt))
            res["calibrated log mean"] = acc(sum(Xt))
            from raysent.ensembles.predictions import as_predictions, as_targets

            f = cross_fit(np.stack(Vt), y, method="greedy")
            res["calibrated greedy"] = acc(f.predict(np.stack(Xt)))
            # sharpness-scaled: each member's sum weight by pool alone (1 member pool), same idea by pool's solver
            out.write_text(json.dumps(res))
            print(out.name, {k: round(v, 1) for k, v in res.items() if isinstance(v, float)}, flush=True)
