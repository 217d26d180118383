"""numpy, pandas, matplotlib, tqdm and scikit-learn."""

# %% numpy: arrays as values
import numpy as np
a = np.arange(12).reshape(3, 4)
print(a.mean(axis=0), a[a % 2 == 0], a.T.shape, np.linalg.norm(a))
a

# %% numpy: a large array is shortened
import numpy as np
np.zeros((2000, 50))

# %% numpy: dtypes, structured arrays and masked ones
import numpy as np
s = np.array([(1, 2.5, "x")], dtype=[("i", "i4"), ("f", "f8"), ("s", "U3")])
print(s["f"], np.ma.array([1, 2, 3], mask=[0, 1, 0]), np.array(["a", None], dtype=object), np.datetime64("2026-01-01") + 1)
s

# %% numpy: a scalar and nan
import numpy as np
np.float32(1) / 3, np.float64("nan"), np.int8(127), np.bool_(True)

# %% numpy: printing options hold
import numpy as np
with np.printoptions(precision=2, suppress=True):
    print(np.array([1.23456, 1e-9]))
np.set_printoptions(precision=3)
# %%
import numpy as np
x = np.array([1.23456])
repr(x)
# %%
np.set_printoptions(precision=8)

# %% numpy: a warning of a division
import numpy as np
np.array([1.0, 0.0]) / 0

# %% numpy: shapes that do not fit
import numpy as np
np.ones((2, 3)) @ np.ones((2, 3))

# %% numpy: a generator with a seed
import numpy as np
_rng = np.random.default_rng(7)
_rng.integers(0, 100, 5), _rng.normal(size=2).round(6), _rng.permutation(4)

# %% numpy: the old generator with a seed, over cells
import numpy as np
np.random.seed(3)
np.random.rand(2)
# %%
np.random.rand(2)

# %% numpy: save and load
import numpy as np
np.savez("arrays.npz", a=np.arange(3), b=np.eye(2))
with np.load("arrays.npz") as loaded:
    b = loaded["b"]
np.save("one.npy", b)
np.load("one.npy", mmap_mode="r")

# %% numpy: vectorize, ufunc, einsum
import numpy as np
f = np.vectorize(lambda x: x * 2)
f([1, 2]), np.einsum("ij,jk->ik", np.eye(2), np.ones((2, 2))), np.add.reduce([1, 2, 3])

# %% numpy: errors are raised where that was asked for
import numpy as np
old = np.seterr(all="raise")
try:
    np.float64(1) / np.float64(0)
finally:
    np.seterr(**old)

# %% pandas: a frame as the value
import pandas as pd
df = pd.DataFrame({"name": ["a", "b", None], "n": [1.5, 2.0, float("nan")], "when": pd.date_range("2026-01-01", periods=3)})
df

# %% pandas: describe, groupby, pivot and merge
import pandas as pd
df = pd.DataFrame({"k": list("aabb"), "c": list("xyxy"), "v": [1, 2, 3, 4]})
print(df.describe())
print(df.groupby("k")["v"].agg(["sum", "mean"]))
print(df.pivot(index="k", columns="c", values="v"))
df.merge(pd.DataFrame({"k": ["a"], "w": [9]}), how="left")

# %% pandas: a series, a category and an index
import pandas as pd
s = pd.Series([3, 1, 2], index=list("abc"), name="s")
print(s.sort_values(), pd.Categorical(["x", "y", "x"]), pd.MultiIndex.from_product([[1, 2], ["a"]]))
s

# %% pandas: info is printed
import pandas as pd
pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}).info()

# %% pandas: a wide and long frame is shortened
import numpy as np, pandas as pd
pd.DataFrame(np.arange(4000).reshape(100, 40))

# %% pandas: options hold in the next cell
import pandas as pd
pd.set_option("display.max_rows", 4)
# %%
print(pd.DataFrame({"a": range(20)}))
# %%
pd.reset_option("display.max_rows")

# %% pandas: csv, json and queries
import io, pandas as pd
df = pd.read_csv(io.StringIO("a,b\n1,x\n2,y\n"), dtype={"a": "int8"})
df.to_csv("frame.csv", index=False)
limit = 1
df.query("a > @limit"), df.to_json(orient="records"), pd.read_csv("frame.csv").equals(df.astype({"a": "int64"})), df.eval("c = a * 2")

# %% pandas: apply with a function of the cell
import pandas as pd
scale = 10
def times(row):
    return row["a"] * scale
pd.DataFrame({"a": [1, 2]}).apply(times, axis=1)

# %% pandas: a column that is not there
import pandas as pd
df = pd.DataFrame({"a": [1]})
df["b"]

# %% pandas: a style
import pandas as pd
html = pd.DataFrame({"a": [1, 2]}).style.format("{:.1f}").set_uuid("u").to_html()
"<table" in html, html.count("<td")

# %% pandas: plot
import pandas as pd
ax = pd.DataFrame({"a": [1, 3, 2]}).plot(title="t")
_ = len(ax.lines)

# %% matplotlib: a figure of the cell is shown at its end
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(2, 2))
ax.plot([1, 2, 3])
_ = ax.set_title("title")

# %% matplotlib: show in the middle
import matplotlib.pyplot as plt
print("before")
plt.plot([1, 2])
plt.show()
print("between")
plt.hist([1, 1, 2])
plt.show()
print("after")

# %% matplotlib: the last expression is what plot gives
import matplotlib.pyplot as plt
plt.plot([1, 2], [3, 4], label="line")

# %% matplotlib: a figure as the value
import matplotlib.pyplot as plt
fig = plt.figure(figsize=(1, 1))
plt.close(fig)
fig

# %% matplotlib: savefig and closing
import matplotlib.pyplot as plt, os
plt.plot([1])
plt.savefig("figure.png")
plt.close("all")
os.path.getsize("figure.png") > 100, plt.get_fignums()

# %% matplotlib: settings hold
import matplotlib.pyplot as plt
plt.rcParams["figure.figsize"] = (3, 1)
# %%
plt.rcParams["figure.figsize"]
# %%
plt.rcdefaults()
get_ipython().run_line_magic("matplotlib", "inline")

# %% matplotlib: a figure before an error is shown
import matplotlib.pyplot as plt
plt.plot([1, 2])
raise ValueError("after the plot")

# %% matplotlib: a wrong argument
import matplotlib.pyplot as plt
plt.plot([1, 2], [1, 2, 3])
# %%
plt.close("all")

# %% matplotlib: retina and svg figures
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg")
import matplotlib.pyplot as plt
fig = plt.figure(figsize=(1, 1)); plt.close(fig)
from IPython.display import display
display(fig)
set_matplotlib_formats("png")

# %% tqdm: a bar on the error stream
from tqdm import tqdm
total = 0
for i in tqdm(range(5), desc="steps", bar_format="{desc}: {n_fmt}/{total_fmt}"):
    total += i
total

# %% tqdm: a bar that is left behind, by hand
from tqdm import tqdm
bar = tqdm(total=4, bar_format="{n_fmt}/{total_fmt} {postfix}", ascii=True)
bar.update(3)
bar.set_postfix(loss=0.5)
bar.close()
bar = None

# %% tqdm: auto
from tqdm.auto import tqdm as _tqdm
sum(x for x in _tqdm(range(3), disable=True))

# %% scikit-learn: fit, predict and score
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
X, y = load_iris(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
model = LogisticRegression(max_iter=500).fit(X_train, y_train)
print(model.score(X_test, y_test), cross_val_score(model, X, y, cv=3).round(4))
model

# %% scikit-learn: a pipeline with a support vector machine
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
X, y = make_classification(60, random_state=0)
pipe = make_pipeline(StandardScaler(), SVC(C=2)).fit(X, y)
pipe.score(X, y), pipe.predict(X[:5])
# %%
pipe

# %% scikit-learn: a model that is not fitted
from sklearn.svm import SVC
SVC().predict([[1, 2]])

# %% scikit-learn: several processes
from sklearn.ensemble import RandomForestClassifier
from sklearn.datasets import load_iris
X, y = load_iris(return_X_y=True)
RandomForestClassifier(10, random_state=0, n_jobs=2).fit(X, y).predict(X[::30])

# %% scikit-learn: a grid search with output
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.tree import DecisionTreeClassifier
X, y = load_iris(return_X_y=True)
search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2]}, cv=2).fit(X, y)
search.best_params_, round(search.best_score_, 4)

# %% scikit-learn: a transformer of the cell's own
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
class Doubler(BaseEstimator, TransformerMixin):
    def __init__(self, factor=2):
        self.factor = factor
    def fit(self, X, y=None):
        return self
    def transform(self, X):
        return np.asarray(X) * self.factor
clone(Doubler(3)).fit_transform([[1, 2]]), Doubler(5)

# %% scipy: optimize, stats and sparse
import numpy as np
from scipy import optimize, sparse, stats
r = optimize.minimize(lambda x: (x[0] - 1) ** 2, [0.0])
print(r.x.round(3), stats.norm.cdf(0), stats.ttest_ind([1, 2, 3], [4, 5, 6]).pvalue.round(4))
sparse.csr_matrix(np.eye(3))

# %% joblib: cache and parallel threads
from joblib import Memory, Parallel, delayed
print(Parallel(n_jobs=2, prefer="threads")(delayed(pow)(i, 2) for i in range(4)))

# %% h5py: write and read
import h5py, numpy as np
with h5py.File("data.h5", "w") as f:
    f.create_dataset("x", data=np.arange(5), compression="gzip").attrs["unit"] = "m"
with h5py.File("data.h5") as f:
    x = f["x"]
    print(x, x.attrs["unit"], f.keys())
    total = x[:].sum()
total
