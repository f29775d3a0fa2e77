"""Files with classes of the user's own that have a mistake in them."""

from __future__ import annotations

import random

RAISES = [
    "raise ValueError('wrong value')", "raise KeyError('name')", "raise RuntimeError('first line\\nsecond line')",
    "raise AttributeError('no such thing')", "1 / 0", "[][3]", "raise Exception", "raise NotImplementedError",
    "raise StopIteration", "assert False, 'never'", "raise MemoryError", "raise OSError(28, 'No space left')",
    "raise SystemExit(3)", "raise SystemExit('bye')", "raise KeyboardInterrupt", "import no_such_module_at_all",
    "torch.zeros(2) @ torch.zeros(3)", "raise RecursionError('too deep')", "raise UnicodeError('letters')",
]  # fmt: skip
RETURNS = [
    "None",
    "3",
    "'text'",
    "torch.zeros(0)",
    "torch.full((3,), float('nan'))",
    "[]",
    "{}",
    "object()",
    "lambda: 0",
]
HEADERS = [
    "def broken(:\n", "import no_such_module_at_all\n", "raise ValueError('at import')\n",
    "from pfl_lightning import Nobody\n",
    "import sys; sys.exit(4)\n", "import sys; sys.exit('bye')\n", "\tx = 1\n", "1 / 0\n", "x = 'no class here'\n",
]  # fmt: skip

METHODS = {
    "algorithm": ["__post_init__(self)", "check(self, task, data)", "init_server(self, client, server)",
                  "setup(self, client, server)", "download(self, client, server)", "fit(self, client, server)",
                  "upload(self, client, server)", "aggregate(self, server, uploads)", "test(self, client, server)",
                  "personalize(self, client, server)", "exchange(self, client)"],
    "task": ["__init__(self, net=None, optimizer=None)", "build(self, spec)", "training_step(self, batch, batch_idx=0)",
             "test_step(self, batch, batch_idx=0)", "configure_optimizers(self)", "metrics(self, sums)",
             "forward(self, x)"],
    "task.net": ["__init__(self, spec)", "forward(self, x)"],
}  # fmt: skip
PARENTS = {
    "algorithm": "from dataclasses import dataclass\nfrom pfl_lightning.algorithms import FedAvg as Parent\n",
    "task": "from pfl_lightning.tasks import Classification as Parent\n",
    "task.net": "from pfl_lightning.nets import CNN as Parent\n",
}


def random_own_class(rng: random.Random) -> tuple[str, str, str]:
    """The key, the text of mine.py and the name of the class."""
    key = rng.choice(list(METHODS))
    head = rng.choice(HEADERS) if rng.random() < 0.15 else ""
    parent = "object" if rng.random() < 0.05 else "Parent"
    code = f"{head}import torch\n{PARENTS[key]}\nclass Mine({parent}):\n"
    for method in rng.sample(METHODS[key], rng.choice([1, 1, 2])):
        body = rng.choice(RAISES) if rng.random() < 0.6 else f"return {rng.choice(RETURNS)}"
        if rng.random() < 0.1:
            method = method.replace("(self", "(self, extra", 1)
        code += f"    def {method}:\n        {body}\n"
    return key, code, rng.choice(["mine.Mine"] * 9 + ["mine.Nobody", "mine.torch", "mine", "Mine"])


def random_own_data(rng: random.Random) -> tuple[str, str]:
    """The text of mine.py and the name of the class."""
    x = rng.choice(["torch.randn(40, 6)"] * 4 + [
        "torch.randn(30, 6)", "torch.randn(40, 5)", "torch.randn(40)", "torch.zeros(0, 6)",
        "torch.full((40, 6), float('nan'))",
        "torch.randn(40, 6).int()", "torch.randn(40, 6).double()", "torch.randn(40, 6).cfloat()", "[[1.0] * 6] * 40",
        "None",
        "torch.randn(40, 6).half()", "torch.full((40, 6), float('inf'))", "torch.randn(40, 6, 2)",
        "torch.ones(40, 6).bool()",
    ])  # fmt: skip
    y = rng.choice(["torch.arange(40) % 3"] * 4 + [
        "torch.arange(40)", "torch.arange(40) - 20", "torch.rand(40)", "torch.arange(30) % 3", "torch.zeros(0).long()",
        "(torch.arange(40) % 3).int()", "(torch.arange(40) % 3)[:, None]", "[0] * 40", "None", "torch.full((40,), -1)",
        "(torch.arange(40) % 3).to(torch.uint8)", "torch.ones(40).bool()",
    ])  # fmt: skip
    indices = rng.choice(["np.arange(40)"] * 4 + [
        "np.arange(40) + 5", "np.arange(40) - 3", "np.arange(40.0)", "np.arange(30)", "np.zeros(40, dtype=int)", "None",
        "np.arange(40).astype(np.int32)", "list(range(40))", "np.arange(40).reshape(4, 10)",
    ])  # fmt: skip
    sizes = rng.choice(["[8] * 4, [2] * 4"] * 3 + [
        "[10] * 4, [0] * 4", "[0] * 4, [10] * 4", "[8] * 3, [2] * 3", "[8] * 4, [2] * 3", "[-8] * 4, [18] * 4",
        "[40, 0, 0, 0], [0] * 4", "[8.5] * 4, [1.5] * 4", "[80] * 4, [2] * 4",
    ])  # fmt: skip
    spec = rng.choice(["DataSpec((6,), 3)"] * 4 + ["DataSpec((5,), 3)", "DataSpec((6,), 0)", "DataSpec((), 3)", "None",
                                                  "DataSpec((6,), 2)", "DataSpec((1, 28, 28), 3)",
                                                  "DataSpec(6, 3)"])  # fmt: skip
    code = (
        "import numpy as np\nimport torch\nfrom pfl_lightning.data import DataSpec, FederatedData, Samples\n"
        "from pfl_lightning.data.partitions.partition import Parts\n\n"
        f"class Mine(FederatedData):\n    spec = {spec}\n    def __init__(self):\n        super().__init__(4)\n"
        f"    def load(self):\n        return Samples({x}, {y}, {rng.choice(['0', '0', '50', '-1', 'None'])})\n"
        f"    def draw(self, samples, rng):\n        train, test = {sizes}\n"
        f"        return Parts({indices}, np.array(train), np.array(test))\n"
    )
    return code, "mine.Mine"
