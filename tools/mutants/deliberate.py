"""Errors that somebody thought of: each would be a wrong method that still trains."""

from __future__ import annotations

from typing import NamedTuple


class Error(NamedTuple):
    """One text of a file replaced by another."""

    file: str
    name: str
    old: str
    new: str

    def make(self, source: str) -> str | None:
        """The source with the error; None if the text is not there once."""
        return source.replace(self.old, self.new) if source.count(self.old) == 1 else None


ERRORS = [
    Error(
        "parts/head_weights.py",
        "FedPAC: M without its cross terms",
        "distances = products - own[:, None] - own[None, :] + own[row]",
        "distances = torch.diag(products.diagonal() - 2 * own + own[row])",
    ),
    Error(
        "fedpac.py",
        "class means count alike, whatever their samples",
        "k * counts / total.clamp(min=1)",
        "k * (counts > 0) / (counts > 0).sum(0).clamp(min=1)",
    ),
    Error(
        "fedpac.py",
        "the alignment is a sum instead of a mean",
        "mse_loss(step.features, targets[batch[1]])",
        "mse_loss(step.features, targets[batch[1]], reduction='sum')",
    ),
    Error(
        "fedpac.py",
        "class means are taken before training",
        'client.memory["means"] = class_means(*features(client), classes)[0]',
        'client.memory["means"] = before',
    ),
    Error(
        "fedpac.py",
        "moments are taken after training",
        '        client.memory["counts"] = counts\n',
        '        client.memory["counts"] = counts\n'
        '        client.memory["moments"], client.memory["variance"] = moments(*features(client), classes)\n',
    ),
    Error(
        "flute.py",
        "no regulariser when body and head are trained together",
        "client.train_epochs(loss=lambda batch: self.loss(",
        "client.train_epochs(loss=lambda batch: FLUTE(simplex=0.0, head_decay=self.head_decay).loss(",
    ),
    Error(
        "flute.py",
        "no decay of features",
        "batch, self.feature_decay))",
        "batch, 0.0))",
    ),
    Error("flute.py", "the body moves in the head's phase", "with client.only([client.task.head]):", "if True:"),
    Error("parts/simplex.py", "Floco: the worst size of simplex", "return min(candidates", "return max(candidates"),
    Error(
        "parts/simplex.py",
        "Floco: always the largest simplex",
        "return min(candidates, key=riesz_energy)",
        "return project(points, 1.0)",
    ),
    Error("pfedfda.py", "the head is trained by gradients", "with client.freezing([client.task.head]):", "if True:"),
    Error("pfedfda.py", "clients count alike", "return upload\n", "upload.weight = 1.0\n        return upload\n"),
    Error("ditto.py", "personal_epochs is ignored", "self.personal_epochs, on_gradient", "on_gradient"),
    Error(
        "lpproj.py",
        "the penalty is clipped too",
        "            client.grad.mul_((self.clip / client.grad.norm()).clamp(max=1.0))\n"
        "            client.grad.sub_(rows.T @ slope(), alpha=self.lam)\n",
        "            client.grad.sub_(rows.T @ slope(), alpha=self.lam)\n"
        "            client.grad.mul_((self.clip / client.grad.norm()).clamp(max=1.0))\n",
    ),
    Error("fedala.py", "share is ignored", 'client.batches("mix", self.share)', 'client.batches("mix")'),
    Error("cfl.py", "the shortest update decides", "norms.max()", "norms.min()"),
    Error("knnper.py", "capacity is ignored", "order[: round(self.capacity * len(order))]", "order"),
    Error(
        "feddpa.py",
        "scores are scaled over the model instead of each tensor",
        "return masks.min_max(score, spans) > self.threshold",
        "return (score - score.min()) / (score.max() - score.min()) > self.threshold",
    ),
    Error(
        "fedprox.py",
        "fine-tuning is the method's own training",
        "    def fit(self",
        "    def finetune(self, client, server, epochs):\n        self.fit(client, server)\n\n"
        "    @override\n    def fit(self",
    ),
    Error("apfl.py", "v's step lacks its factor α", "slope.mul_(alpha.to(slope))", "slope"),
    Error("apfl.py", "α moves by the gradient at w", "own - theta, slope", "own, slope"),
    Error(
        "pfedme.py",
        "w_i goes the share η of the way",
        "self.lr * self.lam)\n        return",
        "self.lr)\n        return",
    ),
    Error("pfedme.py", "no weight decay", "client.grad.add_(client.theta, alpha=self.mu)", "pass"),
    Error("pfedsd.py", "the teacher is the received model", "= client.vector.clone()", "= server.vector.clone()"),
    Error("pfedsd.py", "the teacher is in training mode", "    client.task.eval()\n", ""),
    Error("feddwa.py", "models are compared with models", 'pairwise("guidance",', 'pairwise("parameters",'),
    Error("pfedsop.py", "Δ is not divided by the rate", ".div_(client.learning_rate)", ""),
    Error("pfedsop.py", "β counts the own update", "torch.lerp(own, shared, beta)", "torch.lerp(shared, own, beta)"),
    Error("fedbn.py", "statistics of the last batch", "norm.momentum = None", "norm.momentum = 1.0"),
    Error("cfl.py", "a split in the last round of waiting", "server.round <= self.start", "server.round < self.start"),
    Error(
        "cfl.py",
        "products instead of cosines",
        "products / norms.clamp(min=TINY).outer(norms.clamp(min=TINY))",
        "products",
    ),
    Error("parts/clusters.py", "CFL: long halves attract", " / length(d).clamp(min=TINY)", ""),
    Error("fedala.py", "all losses count, not the last ten", "losses[-WINDOW:]", "losses"),
    Error("feddpa.py", "the same noise in each round", '"privacy", client.round, client.id', '"privacy", client.id'),
    Error("feddpa.py", "the shared entries are trained first", "entries=personal,", "entries=~personal,"),
    Error(
        "flute.py",
        "T has all classes in training",
        "target = simplex_target(self.classes(client))",
        "target = simplex_target(torch.ones_like(self.classes(client)))",
    ),
    Error(
        "flute.py",
        "T has all classes in the server's step",
        'simplex_target(head["classes"])',
        'simplex_target(torch.ones_like(head["classes"]))',
    ),
    Error(
        "pfedfda.py",
        "features after training instead of those seen in it",
        "(torch.cat(parts) for parts in zip(*seen, strict=True)) if seen else features(client)",
        "features(client)",
    ),
    Error("pfedfda.py", "single_beta is ignored", "self.ridge, self.single_beta)", "self.ridge, False)"),
    Error("knnper.py", "held-out samples vote for themselves", "z[held:], y[held:]", "z, y"),
    Error("knnper.py", "the largest of the best λ", "int(correct.argmax())", "100 - int(correct.flip(0).argmax())"),
    Error("softmerge.py", "the threshold of the whole model", "self.eligible(client) & ~personal", "~personal"),
    Error("adaptivequantile.py", "of equal quantiles the smaller", "validation), q))", "validation), -q))"),
    Error("fedpurin.py", "hessian is ignored", "gradient, self.hessian)", "gradient)"),
    Error("fedselect.py", "the first selection comes a visit late", "(client.visits + 1)", "client.visits"),
    Error("fedselect.py", "all clients draw alike", '"select", client.round, client.id', '"select", client.round'),
    Error("fedselect.py", "global entries are trained first", "entries=personal, stream", "entries=~personal, stream"),
    Error(
        "learn2pfed.py",
        "a warm start from the initial w",
        "(server.vector if self.warm_start else server.initial)",
        "server.initial",
    ),
    Error("parts/unrolled.py", "Learn2pFed: Adam without its correction", "1 - beta**v.visits", "1"),
    Error("parts/unrolled.py", "Learn2pFed: every cell takes the first settings", "number % value.shape[1]", "0"),
    Error("parts/admm_cell.py", "Learn2pFed: γ does not count in w", "weight * p * gamma", "weight * p"),
    Error("parts/admm_cell.py", "Learn2pFed: θ does not count", "theta * (at.z", "(at.z"),
    Error("lgfedavg.py", "the warm-up is a round short", "server.round > self.warmup", "server.round >= self.warmup"),
    Error(
        "lpproj.py",
        "fine-tuning is plain training",
        "self.train(client, server, epochs=epochs)",
        "client.train_epochs(epochs)",
    ),
    Error("fedbabu.py", "fine-tuning at the training rate", "client.learning_rate * self.finetune_factor", "None"),
    Error(
        "fedrep.py",
        "the head moves in the body's phase",
        "with client.freezing(self.head_modules(client.task)):",
        "if True:",
    ),
    Error(
        "fedobp.py",
        "the moving average upside down",
        'torch.lerp(score, client.memory["score"]',
        'torch.lerp(client.memory["score"], score',
    ),
    Error(
        "fedcac.py",
        "the score is θ² instead of Δθ·θ",
        "client.theta, start - client.theta",
        "client.theta, client.theta",
    ),
    Error("parts/collaboration.py", "FedCAC: the threshold falls", "(1 - round_ / beta)", "(round_ / beta)"),
    Error(
        "parts/collaboration.py",
        "FedCAC: a group without the client itself",
        "partner | torch.diag(partner.any(1))",
        "partner",
    ),
    Error("parts/two_models.py", "first_visit is ignored", 'if self.first_visit == "global":', "if True:"),
    Error(
        "parts/validation.py",
        "other held-out samples at each visit",
        '"validation", client.id',
        '"validation", client.id, client.round',
    ),
    Error("parts/scores.py", "Fisher of the batch's mean", "gradients.square().sum(0)", "gradients.sum(0).square()"),
    Error(
        "parts/gaussian.py",
        "pFedFDA: β of the means for both",
        "beta[1] * self.covariance + (1 - beta[1])",
        "beta[0] * self.covariance + (1 - beta[0])",
    ),
    Error(
        "flocoplus.py",
        "the copy forgets its region",
        "return torch.where(region(client.layout).to(client.mask.device), client.vector, server.vector)",
        "return server.vector.clone()",
    ),
    Error("fedprox.py", "mu is ignored", "alpha=strength", "alpha=1.0"),
    Error(
        "fedselect.py", "a selection in the whole model counts at once", "grown = personal.clone()", "grown = personal"
    ),
    Error("fedala.py", "weights above 1", ".clamp_(0, 1)", ".clamp_(0, 2)"),
    Error("feddpa.py", "fisher is ignored", '"fisher" if self.fisher == "sample" else "fisher_batch"', '"fisher"'),
    Error("fedbabu.py", "fine-tuning has local_epochs", "client.train_epochs(epochs, lr=", "client.train_epochs(lr="),
    Error("fedpac.py", "a class that nobody has is drawn to zero", "|= total > 0", "|= total >= 0"),
    Error("fedbn.py", "dropout changes the statistics", "    client.task.eval()\n", ""),
]
