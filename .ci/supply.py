#!/usr/bin/env python3
"""What we build on: where it comes from, under which licences, each crate once, and a reason for each that we name ourselves.

Reads `cargo metadata` of the locked versions, for all platforms and features, and every Cargo.toml of the workspace.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Licences that let both of ours (MIT or Apache-2.0) stand.
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "Unicode-3.0", "Unlicense", "Zlib",
}
# Crates that are there in several versions, and why.
TWICE = {
    "miniz_oxide": "0.9 is that of flate2, 0.8 that of png",
    # Only in builds with MPI, whose headers bindgen reads.
    "syn": "3 is that of our derive and serde's, 2 that of bindgen",
    "libloading": "0.9 is ours, 0.8 that of clang-sys",
    "shlex": "2 is that of cc, 1 that of bindgen",
}
# Most crates that each of ours may name, without our own and without those of its tests.
MOST = {
    "dittograd-derive": 3, "dittograd-numerics": 1, "dittograd-device": 3, "dittograd-ops": 3, "dittograd-comm": 3, "dittograd-engine": 3, "dittograd-check": 2, "dittograd": 9,
    "dittograd-cli": 15, "dittograd-python": 2,
}


def allowed(licence):
    """Whether one way to read a licence expression is allowed as a whole."""
    if licence is None:
        return False
    tokens = re.findall(r"\(|\)|[^\s()]+", licence.replace("/", " OR "))
    words = []
    for token in tokens:
        if token in ("(", ")"):
            words.append(token)
        elif token in ("AND", "OR"):
            words.append(token.lower())
        elif token == "WITH":
            # An exception only allows more; it is the next token.
            words.append("or")
        else:
            words.append(str(token in ALLOWED))
    return bool(eval(" ".join(words), {"__builtins__": {}}))


def unreasoned(manifest):
    """Dependencies without a comment right above them."""
    section, before = "", ""
    for line in manifest.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif section.endswith("dependencies") and "=" in line and not line.startswith("#"):
            name = line.split("=")[0].strip()
            # Our own crates need none; those that several name have theirs in the root's `[workspace.dependencies]`.
            if not before.startswith("#") and "path =" not in line and "workspace = true" not in line:
                yield f"{manifest.relative_to(ROOT)}: {name} stands there without a reason"
        before = line


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    wrong, sources, versions = [], set(), defaultdict(set)
    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"
        versions[package["name"]].add(package["version"])
        if not allowed(package["license"]):
            wrong.append(f"{name}: licence {package['license']}")
        if package["source"] is not None:
            sources.add(package["source"])
            if not package["source"].startswith("registry+"):
                wrong.append(f"{name}: comes from {package['source']}")
        elif package["name"] not in MOST:
            wrong.append(f"{name}: is not of this workspace and has no source")
    if len(sources) > 1:
        wrong.append(f"crates come from several places: {sorted(sources)}")
    for name, all_versions in versions.items():
        if len(all_versions) > 1 and name not in TWICE:
            wrong.append(f"{name} is there in versions {', '.join(sorted(all_versions))}")
    wrong += [f"{name} is allowed several versions and has one" for name in TWICE if len(versions[name]) < 2]
    for package in metadata["packages"]:
        if package["name"] in MOST:
            named = [d["name"] for d in package["dependencies"] if d["kind"] != "dev" and d["source"] is not None]
            if len(named) > MOST[package["name"]]:
                wrong.append(f"{package['name']} names {len(named)} crates, more than {MOST[package['name']]}: {named}")
            wrong += unreasoned(Path(package["manifest_path"]))
    print(f"{len(metadata['packages'])} crates, {len(wrong)} objections")
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
