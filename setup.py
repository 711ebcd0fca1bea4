"""The compiled kernel. Everything else about the package is in pyproject.toml.

The extensions are optional: without a C compiler the build goes on without them, and Mainstem runs on its
pure-Python kernel (`mainstem doctor` says which one is active).

    MAINSTEM_SANITIZE=1 pip install -e . --no-build-isolation     a kernel built with AddressSanitizer
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

COMPILED = Path("src/mainstem/kernel/compiled")

OPTIMIZED = ["-O3", "-fno-strict-aliasing", "-Wno-unused-function"]
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-strict-aliasing", "-fsanitize=address,undefined"]

sanitize = bool(os.environ.get("MAINSTEM_SANITIZE"))
extensions = [
    Extension(
        f"mainstem.kernel.compiled.{source.stem}",
        [str(source)],
        extra_compile_args=SANITIZED if sanitize else OPTIMIZED,
        extra_link_args=["-fsanitize=address,undefined"] if sanitize else [],
        depends=[str(path) for path in [*COMPILED.glob("*.h"), *COMPILED.glob("*.pxd")]],
    )
    for source in sorted(COMPILED.glob("*.pyx"))
]

sources = cythonize(
    extensions,
    build_dir="build/cython",
    compiler_directives={
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "embedsignature": True,
    },
)
for extension in sources:
    extension.optional = True  # cythonize makes extensions of its own, and does not carry this over

# They compile side by side: a fresh clone waits for little else.
setup(ext_modules=sources, options={"build_ext": {"parallel": os.cpu_count() or 1}})
