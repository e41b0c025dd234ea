"""Circles of imports between the modules of a crate.

Modules next to each other stand in an order: if `a` or a module within it imports something of `b`, nothing within `b`
imports `a`, neither directly nor through others (`circles`). So do files, parents and children included
(`circles_of_files`). Both read the `mod`, `use` and `crate::…`, `self::…`, `super::…` paths of a crate's sources. A name
that a module passes on (`pub use error::Error`) counts as the file where it is defined, and passing it on is no import
unless the module's own code has the name, too. Code under `#[cfg(test)]` may import anything, and so may what macros make.
"""

import re
import tempfile
from pathlib import Path

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                                # comments, which don't nest here
    |b?r(?P<hashes>\#*)".*?"(?P=hashes)                   # raw strings
    |b?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]{1,8}?|[^\\'\n])'   # strings, characters
    |'\w+|\w+|::|->|=>|\#!?\[|[^\s\w]                     # lifetimes, words, punctuation
    """,
    re.DOTALL | re.VERBOSE,
)
WORD = re.compile(r"[A-Za-z_]\w*")


def tokens(text):
    for match in TOKEN.finditer(text):
        token = match.group()
        if not token.startswith(("//", "/*", '"', "b\"", "r\"", "r#", "br", "b'")) and not (token[0] == "'" and token[-1] == "'"):
            yield token


class Module:
    def __init__(self, path, file):
        self.path = path  # names from the crate's root down
        self.file = file
        self.children = {}
        self.names = {}  # what a `use` of this module brings in: name -> path
        self.globs = []  # paths whose names all come in
        self.paths = []  # all that its code names, relative to the crate's root
        self.passed_on = []  # names of `pub use` with their paths, which are among `paths`, too
        self.words = set()  # all words of its code but those of `use`


class Parser:
    """Reads one file and the files of its modules."""

    def __init__(self, root_file):
        self.root = Module((), root_file)
        self.read(self.root, root_file, root_file.parent)

    def read(self, module, file, folder):
        """`folder` is where the files of the module's children are."""
        self.block(module, list(tokens(file.read_text())), 0, folder)

    def block(self, module, code, at, folder):
        """Reads items up to the `}` that ends the block of an inline module, or the end of the file."""
        depth, is_test = 0, False
        while at < len(code):
            token = code[at]
            if token in ("#[", "#!["):
                end = closing(code, at, "[", "]")
                attribute = "".join(code[at + 1 : end])
                if token == "#[" and re.fullmatch(r"cfg\((test|any\(test,.*\)|all\(test,.*\))\)", attribute):
                    is_test = True
                at = end + 1
                continue
            if is_test:
                # The item ends with its block or its semicolon.
                at = item_end(code, at)
                is_test = False
                continue
            if token == "mod" and at + 2 < len(code) and WORD.fullmatch(code[at + 1]) and code[at + 2] in (";", "{"):
                name = code[at + 1]
                if code[at + 2] == ";":
                    file = next((file for file in (folder / f"{name}.rs", folder / name / "mod.rs") if file.exists()), None)
                    if file is not None:
                        child = module.children[name] = Module((*module.path, name), file)
                        self.read(child, file, folder / name)
                    at += 3
                else:
                    child = module.children[name] = Module((*module.path, name), module.file)
                    at = self.block(child, code, at + 3, folder / name)
                continue
            if token == "use" and (at == 0 or code[at - 1] != "+"):  # not the `+ use<…>` of a type
                end = code.index(";", at)
                is_public = at > 0 and (code[at - 1] == "pub" or code[at - 1] == ")")
                for names, alias in use_tree(code[at + 1 : end]):
                    self.imported(module, names, alias, depth)
                    if is_public and alias != "*":
                        module.passed_on.append((alias, module.paths[-1]))
                at = end + 1
                continue
            if token in ("crate", "self", "super") and at + 1 < len(code) and code[at + 1] == "::":
                names, at = path_at(code, at)
                self.named(module, names)
                continue
            if token in "{}":
                depth += 1 if token == "{" else -1
                if depth < 0:
                    return at + 1
            module.words.add(token)
            at += 1
        return at

    def absolute(self, module, names):
        """A path from the crate's root; `None` for one into another crate."""
        here = list(module.path)
        if names[0] == "crate":
            return tuple(names[1:])
        if names[0] in ("self", "super"):
            for name in names:
                if name == "super":
                    here.pop()
                elif name != "self":
                    break
            return (*here, *(name for name in names if name not in ("self", "super")))
        # Names of children and of what is in scope are resolved once all modules are known.
        return None

    def imported(self, module, names, alias, depth):
        path = self.absolute(module, names)
        if path is None:
            module.paths.append(("relative", tuple(names)))
            path = ("relative", tuple(names))
        else:
            module.paths.append(path)
        if depth == 0:
            if alias == "*":
                module.globs.append(path)
            else:
                module.names[alias] = path

    def named(self, module, names):
        path = self.absolute(module, names)
        if path:
            module.paths.append(path)


def closing(code, at, opens, closes):
    """Where the bracket closes that the token at `at` opens."""
    depth = 0
    for index in range(at, len(code)):
        depth += code[index].endswith(opens)
        depth -= code[index] == closes
        if depth == 0:
            return index
    return len(code) - 1


def item_end(code, at):
    while at < len(code) and code[at] not in ("{", ";"):
        at = closing(code, at, code[at], {"(": ")", "[": "]"}[code[at]]) + 1 if code[at] in "([" else at + 1
    return closing(code, at, "{", "}") + 1 if at < len(code) and code[at] == "{" else at + 1


def path_at(code, at):
    names = [code[at]]
    at += 1
    while at + 1 < len(code) and code[at] == "::" and WORD.fullmatch(code[at + 1]):
        names.append(code[at + 1])
        at += 2
    return names, at


def use_tree(code, prefix=()):
    """Every path of a `use` with the name that it brings in; `*` for all names."""
    names, at = list(prefix), 0
    while at < len(code):
        token = code[at]
        if token == "{":
            end = closing(code, at, "{", "}")
            part, depth = [], 0
            for inner in [*code[at + 1 : end], ","]:
                if inner == "," and depth == 0:
                    if part:
                        yield from use_tree(part, names)
                    part = []
                    continue
                depth += (inner == "{") - (inner == "}")
                part.append(inner)
            return
        if token == "*":
            yield names, "*"
            return
        if token == "as":
            yield names, code[at + 1]
            return
        if token != "::":
            names.append(token)
        at += 1
    if names[-1] == "self" and len(names) > 1:
        names.pop()
    yield names, names[-1]


def resolve(root, module, path, seen=frozenset()):
    """The path of the module in which what `path` names is defined."""
    if path[0:1] == ("relative",):
        names = path[1]
        if names[0] in module.children:
            return resolve(root, module, (*module.path, *names), seen)
        known = module.names.get(names[0])
        if known is None or (module.path, names[0]) in seen or known == path:
            return None  # of another crate
        seen |= {(module.path, names[0])}
        if known[0:1] == ("relative",):
            return resolve(root, module, ("relative", (*known[1], *names[1:])), seen)
        return resolve(root, module, (*known, *names[1:]), seen)
    here = root
    for index, name in enumerate(path):
        if name in here.children:
            here = here.children[name]
            continue
        passed_on = here.names.get(name)
        if passed_on is not None and (here.path, name) not in seen:
            seen |= {(here.path, name)}
            rest = path[index + 1 :]
            if passed_on[0:1] == ("relative",):
                further = resolve(root, here, ("relative", (*passed_on[1], *rest)), seen)
            else:
                further = resolve(root, here, (*passed_on, *rest), seen)
            return further if further is not None else here.path
        break
    return here.path


def modules(module):
    yield module
    for child in module.children.values():
        yield from modules(child)


def imports(root):
    """For each pair of modules next to each other of which the first imports the second: the files that do."""
    edges = {}
    for module in modules(root):
        for path in module.paths:
            target = resolve(root, module, path)
            if target is None:
                continue
            common = 0
            while common < min(len(target), len(module.path)) and target[common] == module.path[common]:
                common += 1
            if common < len(target) and common < len(module.path):
                edges.setdefault((module.path[: common + 1], target[: common + 1]), set()).add(module.file)
    return edges


def circles(root_file):
    """Sets of modules next to each other that import each other, each with a sentence for every import."""
    edges = imports(Parser(root_file).root)
    after = {}
    for one, other in edges:
        after.setdefault(one, set()).add(other)

    def reaches(start):
        found, left = set(), [start]
        while left:
            for next_one in after.get(left.pop(), ()):
                if next_one not in found:
                    found.add(next_one)
                    left.append(next_one)
        return found

    reached = {module: reaches(module) for module in after}
    seen = set()
    for module in sorted(after):
        if module in seen or module not in reached[module]:
            continue
        circle = sorted(other for other in reached[module] if module in reached.get(other, ()))
        seen.update(circle)
        sentences = [
            f"{'::'.join(one)} imports {'::'.join(other)} ({', '.join(sorted(str(file) for file in files))})"
            for (one, other), files in sorted(edges.items())
            if one in circle and other in circle
        ]
        yield circle, sentences


def imports_of_files(root):
    """For each file: the files of the crate that it imports from."""
    edges = {}
    for module in modules(root):
        passed_on = [path for alias, path in module.passed_on if alias not in module.words]
        for path in module.paths:
            if path in passed_on:
                passed_on.remove(path)
                continue
            target = resolve(root, module, path)
            if target is None:
                continue
            there = root
            for name in target:
                there = there.children[name]
            if there.file != module.file:
                edges.setdefault(module.file, set()).add(there.file)
    return edges


def circles_of_files(root_file):
    """Sets of files that import each other."""
    edges = imports_of_files(Parser(root_file).root)

    def reached(start):
        found, left = set(), [start]
        while left:
            for file in edges.get(left.pop(), ()):
                if file not in found:
                    found.add(file)
                    left.append(file)
        return found

    reaches = {file: reached(file) for file in edges}
    seen = set()
    for file in sorted(edges):
        if file in seen or file not in reaches[file]:
            continue
        circle = [other for other in sorted(reaches[file]) if file in reaches.get(other, ())]
        seen.update(circle)
        yield circle, {one: sorted(edges[one].intersection(circle)) for one in circle}


# A crate whose modules import each other in every way that is no circle, and ways to close one.
PLAIN = {
    "lib.rs": "mod a;\nmod b;\nmod c;\npub use b::{Thing as Other, inner};\npub struct Root;\n",
    "a.rs": "use crate::{Other, Root, c::deep::Deep};\nuse std::fmt;\nfn f() -> super::inner::Inner { todo!() }\n",
    "b/mod.rs": "//! Not `use crate::a`.\npub mod inner;\npub struct Thing;\nconst C: (char, &str) = ('\"', \"use crate::a;\");\n",
    "b/inner.rs": "use super::Thing;\npub struct Inner;\n#[cfg(test)]\nmod tests { use crate::a::f; }\n",
    "c.rs": "pub mod deep { pub struct Deep; }\nuse deep::Deep;\n",
}
PLANTED = {
    "b/inner.rs": ["use crate::a::f;", "use super::super::{c, a::{self}};", "fn g() { crate::a::f() }", "use crate::a as other;"],
    "c.rs": ["use crate::a;", "mod x { fn f() { super::super::a::f() } }", "#[cfg(unix)] use super::a::*;"],
}


def test():
    """Finds planted circles, and none where there is none."""

    def found(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                file = Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(content)
            return [["::".join(module) for module in modules] for modules, _ in circles(Path(folder, "lib.rs"))]

    assert found(PLAIN) == [], found(PLAIN)
    for name, lines in PLANTED.items():
        circle = sorted(["a", name[0]])
        for line in lines:
            planted = found({**PLAIN, name: f"{PLAIN[name]}{line}\n"})
            assert planted == [circle], f"{name}: {line}: {planted}, expected {circle}"
    through = {**PLAIN, "c.rs": PLAIN["c.rs"] + "use crate::inner::Inner;\n", "b/mod.rs": PLAIN["b/mod.rs"] + "use crate::a::f;\n"}
    assert found(through) == [["a", "b", "c"]], found(through)

    def files_found(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                file = Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                file.write_text(content)
            return [[str(file.relative_to(folder)) for file in circle] for circle, _ in circles_of_files(Path(folder, "lib.rs"))]

    # A child that imports what its parent defines, and a parent that passes on what the child has.
    child = {"lib.rs": "mod a;\n", "a.rs": "mod b;\npub use b::Deep;\npub struct Thing;\n", "a/b.rs": "use super::Thing;\npub struct Deep;\n"}
    assert files_found(child) == [], files_found(child)
    for line in ["use b::Deep as Other;", "fn f(deep: Deep) {}", "fn f() { self::b::g() }"]:
        planted = files_found({**child, "a.rs": f"{child['a.rs']}{line}\n"})
        assert planted == [["a/b.rs", "a.rs"]], f"{line}: {planted}"
