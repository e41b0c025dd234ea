"""The page that lists the clients with what the last run tried: docs/measurements/clients.md."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/measurements/clients.md"
COLUMNS = ["chat", "stream", "tools", "form"]
HEAD = ["client", "version", "from", *COLUMNS, "further attempts; reasons", "day"]
# The table stands between these lines.
TABLE = re.compile(r"(?<=<!-- clients -->\n\n).*?(?=\n<!-- end of clients -->)", re.DOTALL)


def cells(tried):
    """The columns of the table, and notes: further attempts, failures and reasons."""
    row, right, notes = dict.fromkeys(COLUMNS, "-"), {}, []
    for it in tried:
        name = it["name"]
        word = "-" if "left_out" in it else "FAILED" if it.get("error") else "right"
        if name in row:
            row[name] = word
        elif word == "right":
            what, _, by = name.partition(" by ")
            right.setdefault(by, []).append(what)
        if word != "right":
            notes.append(" ".join(f"{name}: {it.get('error') or it['left_out']}".split()))
    more = [f"{', '.join(names)} by {by}" if by else ", ".join(names) for by, names in right.items()]
    return [row[column] for column in COLUMNS] + ["; ".join(more + notes)]


def line(cells):
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rows():
    """The rows of the page, by the client and where it is from."""
    _, _, *lines = TABLE.search(PAGE.read_text())[0].strip().splitlines()
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", text)[1:-1]] for text in lines]
    return {(row[0], row[2]): row for row in found}


def write(clients, row):
    """Puts a row into the page, in the order of the clients."""
    known = rows() | {(row[0], row[2]): row}
    lines = [line(HEAD), line(["---"] * len(HEAD))]
    lines += [line(known[client.package, client.origin]) for client in clients if (client.package, client.origin) in known]
    text = PAGE.read_text()
    PAGE.write_text(TABLE.sub(lambda _: "\n".join(lines) + "\n", text))


def differences(clients):
    """Returns the differences between the page and the table of clients."""
    known = rows()
    for client in clients:
        row = known.pop((client.package, client.origin), None)
        version = client.version(None)
        if row is None:
            yield f"{client.package} is missing"
        elif row[1] != version and version != "-":
            yield f"{client.package} was tried with {row[1]}, the table has {version}"
    for name, origin in known:
        yield f"{name} from {origin} is not in the table of clients"
