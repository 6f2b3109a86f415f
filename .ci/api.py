#!/usr/bin/env python3
"""The public interface of the library, a line for each item, compared with `.ci/api`; `--update` writes that file.

The lines are made of rustdoc's JSON, which only a nightly compiler writes: without one it says so and ends well. The library is
several crates, of which users see `dittograd`, and `dittograd-check` if they have ops of their own: what these re-export is looked up
in the crate that has it and stands under the path that users write. What has several paths is listed at the shortest, and has a line
at each of the others. What is hidden from the documentation is no part of the interface, and neither are conversions from it and
variants that hold it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / ".ci" / "api"
TARGET = ROOT / "target" / "api"
# The crates that users see, and those that they are made of.
FACADE, CHECK = "dittograd", "dittograd-check"
PARTS = [f"{FACADE}-{manifest.parent.name}" for manifest in sorted(ROOT.glob("crates/*/Cargo.toml"))]
# Traits that say something about how a type is used. Others, such as `Debug`, come and go with derives that nobody calls for.
TOLD = {"Clone", "Copy", "Default", "PartialEq", "Eq", "Hash", "Display", "Error", "From", "FromStr", "Iterator", "IntoIterator", "FromIterator", "Drop", "Add", "Sub", "Mul", "Div", "Neg"}


def path(t):
    """A named type with its arguments."""
    args = (t.get("args") or {}).get("angle_bracketed")
    if args is None:
        both = (t.get("args") or {}).get("parenthesized")
        if both is None:
            return t["path"].split("::")[-1]
        ends = "" if both["output"] is None else f" -> {kind(both['output'])}"
        return f"{t['path'].split('::')[-1]}({', '.join(map(kind, both['inputs']))}){ends}"
    shown = [a["lifetime"] if "lifetime" in a else kind(a["type"]) if "type" in a else a["const"]["expr"] if "const" in a else "_" for a in args["args"]]
    for c in args["constraints"]:
        binding = c["binding"]
        what = binding["equality"] if "equality" in binding else None
        shown.append(c["name"] + (f" = {kind(what['type'])}" if what and "type" in what else ": " + bounds(binding.get("constraint", []))))
    name = t["path"].split("::")[-1]
    return f"{name}<{', '.join(shown)}>" if shown else name


def bounds(all_bounds):
    said = []
    for b in all_bounds:
        if "trait_bound" in b:
            t = b["trait_bound"]
            params = [p["name"] for p in t["generic_params"]]
            said.append((f"for<{', '.join(params)}> " if params else "") + ("?" if t["modifier"] == "maybe" else "") + path(t["trait"]))
        elif "outlives" in b:
            said.append(b["outlives"])
    return " + ".join(said)


def kind(t):
    """A type."""
    (form, t), = t.items()
    match form:
        case "resolved_path":
            return path(t)
        case "generic" | "primitive":
            return t
        case "tuple":
            return f"({', '.join(map(kind, t))})"
        case "slice":
            return f"[{kind(t)}]"
        case "array":
            return f"[{kind(t['type'])}; {t['len']}]"
        case "borrowed_ref":
            return "&" + (t["lifetime"] + " " if t["lifetime"] else "") + ("mut " if t["is_mutable"] else "") + kind(t["type"])
        case "raw_pointer":
            return ("*mut " if t["is_mutable"] else "*const ") + kind(t["type"])
        case "impl_trait":
            return "impl " + bounds(t)
        case "dyn_trait":
            return "dyn " + " + ".join([path(b["trait"]) for b in t["traits"]] + ([t["lifetime"]] if t["lifetime"] else []))
        case "qualified_path":
            return f"{kind(t['self_type'])}::{t['name']}"
        case "function_pointer":
            return "fn" + signature(t["sig"])
        case _:
            return form


def signature(sig):
    ins = [kind(t) if name == "self" else f"{name}: {kind(t)}" for name, t in sig["inputs"]]
    return f"({', '.join(ins)})" + ("" if sig["output"] is None else f" -> {kind(sig['output'])}")


def generics(g):
    said = []
    for p in g["params"]:
        (form, k), = p["kind"].items()
        if form == "type" and not k["is_synthetic"]:
            said.append(p["name"] + (f": {bounds(k['bounds'])}" if k["bounds"] else ""))
        elif form == "const":
            said.append(f"const {p['name']}: {kind(k['type'])}")
    for w in g["where_predicates"]:
        if "bound_predicate" in w:
            said.append(f"{kind(w['bound_predicate']['type'])}: {bounds(w['bound_predicate']['bounds'])}")
    return f"<{', '.join(said)}>" if said else ""


class Lines:
    """The lines of what can be reached. Ids count within one crate, so an item is its crate's JSON and its id."""

    def __init__(self, docs):
        # Lines, each with the types of ours that must be listed for it to stand.
        self.out = {}
        # Where each item is listed, and the modules still to go through: those with shorter paths first.
        self.seen, self.modules = {}, []
        # Where the crates have what others name: paths are those of the definition in all of them.
        self.places = {}
        for doc in docs:
            for id, p in doc["paths"].items():
                if p["crate_id"] == 0:
                    self.places[p["kind"], *p["path"]] = (doc, id)
        # Impls for types of another of the crates, which are only in the JSON of the crate that has the impl.
        self.far = {}
        for doc in docs:
            for id, item in doc["index"].items():
                of = item["inner"]["impl"]["for"].get("resolved_path") if "impl" in item["inner"] else None
                p = doc["paths"].get(str(of["id"])) if of else None
                if p and p["crate_id"] != 0:
                    self.far.setdefault((p["kind"], *p["path"]), []).append((doc, id))

    def say(self, at, text, needs=()):
        self.out[f"{at} {text}"] = list(needs)

    def ours(self, doc, value):
        """The items of our crates that a type or path of the JSON names."""
        if isinstance(value, dict):
            at = self.find(doc, value["id"]) if "path" in value and "id" in value else None
            own = value.get("id") is not None and "path" in value and (doc["paths"].get(str(value["id"])) or {}).get("path", ["std"])[0]
            if own and own.startswith(FACADE):
                yield self.key(*at) if at else None
            for inner in value.values():
                yield from self.ours(doc, inner)
        elif isinstance(value, list):
            for inner in value:
                yield from self.ours(doc, inner)

    @staticmethod
    def key(doc, id):
        return doc["index"][str(doc["root"])]["name"], str(id)

    def lines(self, doc):
        """The lines of what can be reached from the root of a crate."""
        self.item(doc, doc["root"], "")
        while self.modules:
            doc, items, at = self.modules.pop(0)
            for inner in items:
                self.item(doc, inner, at)
        return sorted(line for line, needs in self.out.items() if all(n in self.seen for n in needs))

    def find(self, doc, id):
        """The crate that has an item and its id there; nothing for what is hidden or of a crate that is not ours."""
        item, p = doc["index"].get(str(id)), doc["paths"].get(str(id))
        if p and p["crate_id"] != 0:
            doc, id = self.places.get((p["kind"], *p["path"]), (None, None))
            item = doc and doc["index"].get(str(id))
        return (doc, id) if item else None

    def item(self, doc, id, at, name=None):
        item = doc["index"].get(str(id))
        if item is None:
            return
        (form, x), = item["inner"].items()
        if form == "use":
            target = None if x["id"] is None else self.find(doc, x["id"])
            # What the prelude has is all elsewhere.
            if target is None or at.endswith("::prelude"):
                self.say(at, f"use {x['source']}")
            elif x["is_glob"]:
                doc, id = target
                inside = next(iter(doc["index"][str(id)]["inner"].values()))
                for inner in inside.get("items", []) + inside.get("variants", []):
                    self.item(doc, inner, at)
            else:
                self.item(*target, at, name or x["name"])
            return
        if item["visibility"] not in ("public", "default"):
            return
        here = f"{at}::{name or item['name']}" if at else item["name"]
        first = self.seen.setdefault(self.key(doc, id), here)
        if first != here and form not in ("module", "struct_field", "variant"):
            self.say(here, f"use {first}")
            return
        match form:
            case "module":
                self.modules.append((doc, x["items"], here))
            case "function":
                self.say(here, "fn" + generics(x["generics"]) + signature(x["sig"]))
            case "struct":
                self.say(here, "struct" + generics(x["generics"]))
                shape = x["kind"]
                fields = shape["plain"]["fields"] if "plain" in shape else shape.get("tuple", []) if isinstance(shape, dict) else []
                for f in fields:
                    if f is not None:
                        self.item(doc, f, here)
                self.impls(doc, id, x["impls"], here)
            case "struct_field":
                self.say(here, kind(x))
            case "enum":
                self.say(here, "enum" + generics(x["generics"]))
                for v in x["variants"]:
                    self.item(doc, v, here)
                self.impls(doc, id, x["impls"], here)
            case "variant":
                shape = x["kind"]
                parts = [] if shape == "plain" else shape["tuple"] if "tuple" in shape else shape["struct"]["fields"]
                fields = [doc["index"][str(p)] for p in parts if p is not None]
                text = ", ".join(f"{f['name']}: {kind(f['inner']['struct_field'])}" for f in fields)
                self.say(here, f"variant {text}".rstrip(), self.ours(doc, [f["inner"] for f in fields]))
            case "trait":
                self.say(here, "trait" + generics(x["generics"]) + (": " + bounds(x["bounds"]) if x["bounds"] else ""))
                for inner in x["items"]:
                    self.item(doc, inner, here)
            case "type_alias":
                self.say(here, "type = " + kind(x["type"]))
            case "constant":
                self.say(here, "const " + kind(x["type"]))
            case "assoc_const":
                self.say(here, "const " + kind(x["type"]))
            case "assoc_type":
                self.say(here, "type " + bounds(x["bounds"]))
            case _:
                self.say(here, form)

    def impls(self, doc, id, ids, at):
        p = doc["paths"][str(id)]
        for doc, id in [(doc, id) for id in ids] + self.far.get((p["kind"], *p["path"]), []):
            item = doc["index"].get(str(id))
            if item is None:
                continue
            x = item["inner"]["impl"]
            if x["trait"] is None:
                for inner in x["items"]:
                    self.item(doc, inner, at)
            elif not x["is_synthetic"] and x["blanket_impl"] is None and x["trait"]["path"].split("::")[-1] in TOLD:
                self.say(at, f"impl {path(x['trait'])}", self.ours(doc, x["trait"]["args"]))


def main():
    compiler = subprocess.run(["cargo", "+nightly", "--version"], cwd=ROOT, capture_output=True)
    if compiler.returncode != 0:
        print("skipped: no nightly compiler here, which writes the documentation as JSON")
        return
    # `cargo rustdoc` takes flags for one crate only, the environment for all.
    env = dict(os.environ, CARGO_TARGET_DIR=str(TARGET), RUSTDOCFLAGS="-Zunstable-options --output-format json --cap-lints allow")

    def lines(seen):
        """Those of one crate. Each is documented by itself: another one may ask for more features of what both are made of."""
        crates = [seen, *PARTS]
        packages = [word for name in crates for word in ("-p", name)]
        subprocess.run(["cargo", "+nightly", "doc", "--quiet", "--no-deps", "--lib", *packages], cwd=ROOT, env=env, check=True)
        docs = [json.loads((TARGET / "doc" / f"{name.replace('-', '_')}.json").read_text()) for name in crates]
        return Lines(docs).lines(docs[0])

    now = lines(FACADE) + lines(CHECK)
    if "--update" in sys.argv:
        SNAPSHOT.write_text("\n".join(now) + "\n")
        print(f"{len(now)} lines written")
        return
    old = set(SNAPSHOT.read_text().splitlines())
    gone, new = sorted(old - set(now)), sorted(set(now) - old)
    print("\n".join([f"- {l}" for l in gone] + [f"+ {l}" for l in new] + [f"{len(now)} lines, {len(gone)} gone, {len(new)} new"]))
    if gone or new:
        sys.exit("the public interface is another; `.ci/api.py --update` says that this is meant")


if __name__ == "__main__":
    main()
