"""Writes jinja.json: expressions as jinja2 renders them in the environment of `transformers`.

Every filter, test, method and operator is applied to a value of each kind, with arguments that templates use. A result is
the text of a list with the value, so that 1 and '1' differ. It is 0 where jinja2 raises an error, or writes an address.
A text of more than 24 letters is `#` and the 64-bit FNV-1a hash of its bytes.

    python jinja.py        # needs transformers and jinja2 (written with transformers 5.24, jinja2 3.1.6)
"""

import json
import warnings
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

warnings.filterwarnings("ignore")

# Jinja expressions for the values.
KINDS = [
    "nothing", "none", "true", "false", "0", "3", "-2", "1.5", "''", "'abc'", "' Ab c '", "'Ünï ß ǆx 中a'", "'12'",
    "'a,b\\nc d'", "[]", "[1, 2]", "[{'a': 1, 'b': 'x'}, {'a': 2}]", "[1, 'a', none, true, 2.5]", "['b', 'A', 'a']",
    "(1, 'a')", "{}", "{'a': 1, 'b': [2]}", "{'items': 1, 'keys': 'k', 'get': none, 'pop': 2}", "namespace(a=1, b='x')",
    "range(3)", "{'a': 1}.keys()", "['a', 'b'] | map('upper')",
]  # fmt: skip

FILTERS = {
    "abs": [""],
    "attr": ["('a')", "('items')", "('upper')", "(1)"],
    "batch": ["(2) | list", "(2, 'x') | list", "(0) | list", "(linecount=2) | list"],
    "capitalize": [""],
    "center": ["", "(9)", "(width=4)", "('a')"],
    "count": [""],
    "d": ["", "(1)"],
    "default": ["('x')", "('x', true)", "(default_value=2)", "('x', boolean=true)", "(none)"],
    "dictsort": ["", "(true)", "(by='value')", "(false, 'key', true)", "(reverse=true)", "(by='x')"],
    "e": [""],
    "escape": [""],
    "filesizeformat": ["", "(true)"],
    "first": [""],
    "float": ["", "(2.5)", "(default='x')"],
    "forceescape": [""],
    "format": ["('a')", "(1, 2)", "(a=1)"],
    "groupby": ["('a')", "('a', default=0)", "(0)"],
    "indent": ["", "(2)", "(1, true)", "('-')", "(width=2, first=true, blank=true)"],
    "int": ["", "(7)", "(default=none)", "(0, 16)", "(base=2)"],
    "items": [" | list", ""],
    "join": ["", "(', ')", "(none)", "(1)", "(',', 'a')", "(attribute='a')", "(d='-')"],
    "last": [""],
    "length": [""],
    "list": [""],
    "lower": [""],
    "map": ["('upper') | list", "(attribute='a') | list", "(attribute='a', default='z') | list", "('int') | list", "() | list",
            "('default', 'x') | list", "('string') | list", "(attribute='a.b') | list", "(attribute=0) | list", "('nofilter') | list",
            "('tojson') | list", "('length') | list", "('first') | join", "('replace', 'a', 'b') | list"],
    "max": ["", "(attribute='a')", "(true)"],
    "min": ["", "(case_sensitive=true)", "(attribute='a')"],
    "pprint": [""],
    "random": [""],
    "reject": ["| list", "('string') | list", "('odd') | list", "('equalto', 1) | list", "('in', [1, 'a']) | list"],
    "rejectattr": ["('a') | list", "('a', 'equalto', 1) | list", "('b', 'defined') | list"],
    "replace": ["('a', 'b')", "('a', '')", "('a', 'xy', 1)", "('', '-')", "('', '-', 2)", "(1, 2)", "('a')", "(old='a', new='b', count=1)", "('a', none)"],
    "reverse": ["", " | list"],
    "round": ["", "(1)", "(0, 'floor')", "(1, 'ceil')", "(method='floor')", "(-1)", "(1, 'x')"],
    "safe": [""],
    "select": ["| list", "('string') | list", "('none') | list", "('equalto', 'a') | list", "('mapping') | list", "('notest') | list", "('gt', 1) | list"],
    "selectattr": ["('a') | list", "('a', '==', 1) | list", "('a', 'defined') | list", "('b') | list", "('a.b') | list", "() | list", "('a', 'in', [1]) | list"],
    "slice": ["(2) | list", "(2, 'x') | list", "(0) | list"],
    "sort": ["", "(true)", "(reverse=true)", "(case_sensitive=true)", "(attribute='a')", "(false, true)", "(attribute='a,b')"],
    "string": [""],
    "striptags": [""],
    "sum": ["", "(start=1)", "(attribute='a')", "('a', 2)", "(start='')", "(start=[])"],
    "title": [""],
    "tojson": ["", "(indent=2)", "(ensure_ascii=true)", "(sort_keys=true)", "(separators=(',', ':'))", "(false, 1)"],
    "trim": ["", "('a')", "(none)", "(chars=' c')", "(1)"],
    "truncate": ["", "(3)", "(4, true)", "(5, true, '..')", "(1, leeway=0)", "(3, false, '', 0)", "(length=4, killwords=true, end='.', leeway=0)"],
    "unique": [" | list", "(true) | list", "(attribute='a') | list", ""],
    "upper": [""],
    "urlencode": [""],
    "urlize": [""],
    "wordcount": [""],
    "wordwrap": ["(3)"],
    "xmlattr": [""],
    "nofilter": [""],
}  # fmt: skip

TESTS = {
    "boolean": [""], "callable": [""], "defined": [""], "divisibleby": ["(2)", "(0)", " 1.5"], "eq": ["(1)", " 'abc'", "([1, 2])"],
    "equalto": ["('12')"], "==": ["(1.5)"], "!=": ["(1)"], "escaped": [""], "even": [""], "false": [""], "filter": [""], "float": [""],
    "ge": ["(1)"], "gt": ["(1)", "('a')"], ">": ["(0)"], "greaterthan": ["(2)"], "in": ["([1, 3, none])", "('abc12')", "({'a': 1})", "(1)"],
    "integer": [""], "iterable": [""], "le": ["(3)"], "lt": ["('b')", "(1)"], "<": ["(1)"], "<=": ["(1)"], ">=": ["(1)"],
    "lessthan": ["(5)"], "lower": [""], "mapping": [""], "ne": ["(1)", "('abc')"], "none": [""], "number": [""], "odd": [""],
    "sameas": ["(none)", "(true)", "(0)"], "sequence": [""], "string": [""], "test": [""], "true": [""], "undefined": [""], "upper": [""],
    "notest": [""],
}  # fmt: skip

METHODS = {
    "capitalize": ["()"], "casefold": ["()"], "center": ["(6)", "(7, '*')", "()"], "count": ["('a')", "(1)", "('')", "('c', 2)"],
    "encode": ["()"], "endswith": ["('c')", "(('c', ' '))", "('b', 0, 2)", "(1)", "()"], "expandtabs": ["()", "(4)"],
    "find": ["('b')", "('b', 2)", "('z')", "(1)"], "format": ["()", "(1)", "(a=1)"], "format_map": ["({})"],
    "index": ["('b')", "(1)", "('zz')"], "isalnum": ["()"], "isalpha": ["()"], "isascii": ["()"], "isdecimal": ["()"], "isdigit": ["()"],
    "isidentifier": ["()"], "islower": ["()"], "isnumeric": ["()"], "isprintable": ["()"], "isspace": ["()"], "istitle": ["()"],
    "isupper": ["()"], "join": ["(['a', 'b'])", "([1])", "('xy')", "({'k': 1})", "([])"], "ljust": ["(6)", "(6, '.')", "(6, 'ab')"],
    "lower": ["()", "(1)"], "lstrip": ["()", "('a ')", "(none)"], "partition": ["('b')", "('')", "(1)"], "removeprefix": ["('a')", "(1)"],
    "removesuffix": ["('c')", "('')"], "replace": ["('a', 'b')", "('a', 'b', 1)", "('', '.')", "(1, 2)", "('b')", "('a', 'b', -1)"],
    "rfind": ["('b')", "('')"], "rindex": ["('b')"], "rjust": ["(6)", "(6, '0')"], "rpartition": ["('b')"],
    "rsplit": ["()", "(',')", "('b', 1)", "(none, 1)", "(maxsplit=1)"], "rstrip": ["()", "('c')"],
    "split": ["()", "(',')", "('b', 1)", "(none, 1)", "(' ')", "(sep=',')", "(',', maxsplit=1)", "('')", "(1)"],
    "splitlines": ["()", "(true)", "(keepends=true)"], "startswith": ["('a')", "(('a', ' '))", "('b', 1)", "('')", "([])", "(1)"],
    "strip": ["()", "('a')", "(none)", "(1)"], "swapcase": ["()"], "title": ["()"], "translate": ["({})"], "upper": ["()"],
    "zfill": ["(6)", "('a')"], "items": ["()", "() | list"], "keys": ["()", "() | list", "() | length"], "values": ["()", "() | list"],
    "get": ["('a')", "('z')", "('z', 1)", "('b', default=1)", "(1)", "()", "([])", "('items')"], "pop": ["('a')", "()"], "copy": ["()"],
    "update": ["({})"], "setdefault": ["('a', 1)"], "popitem": ["()"], "clear": ["()"], "fromkeys": ["(['a'])"], "append": ["(1)"],
    "insert": ["(0, 1)"], "extend": ["([1])"], "remove": ["(1)"], "reverse": ["()"], "sort": ["()"], "bit_length": ["()"],
    "is_integer": ["()"], "hex": ["()"], "conjugate": ["()"], "isdisjoint": ["([1])"], "nomethod": ["()"], "a": ["()"],
}  # fmt: skip

OTHERS = [
    "x", "-x", "+x", "not x", "x[0]", "x[-1]", "x[9]", "x['a']", "x['items']", "x['upper']", "x[none]", "x[1.0]", "x[true]", "x[nothing]",
    "x[1:]", "x[:2]", "x[::-1]", "x[-2:]", "x[1:2:1]", "x['a':]", "x[::0]", "x[:none]", "x[[]]", "x.a", "x.b", "x.missing", "x.0", "x.a.b",
    "x.items", "x.items is defined", "x.keys is callable", "x.get is none", "x.pop is defined", "x.values is string", "x.copy is mapping",
    "x.update is defined", "x.upper is defined", "x.append is defined", "x.count is defined", "x.strip is defined", "x.a is defined",
    "x['a'] is defined", "x.real is defined", "x.start is defined", "x.items == 1", "x.items and 1", "x.get or 2", "x.keys | default(1)",
    "1 if x.items else 2", "1 if x.pop else 2", "x.a.items is defined", "x.__class__", "x.missing.more", "x.missing | default('d')",
    "x()", "x is defined and x", "1 if x else 2", "x if x else 'e'", "x or 'o'", "x and 'a'", "x ~ ''", "x ~ 1 ~ x", "(x,)", "{'k': x}",
    "{x: 1}", "x * 2", "2 * x", "x + x", "x == x", "x != x", "x < x", "x in x", "'a' in x", "1 in x", "x in [x]", "x in 'abc'", "'%s' % x",
    "'%d' % x", "'%5.1f|' % x", "'%r' % x", "'%s-%s' % (x, x)", "'%(a)s' % x", "'{}'.format(x)", "'{0}{a}'.format(1, a=x)", "'{:>6}'.format(x)",
    "'{:.1f}'.format(x)", "range(x) | list", "range(x)", "dict(x)", "dict(a=x)", "namespace(x)", "namespace(a=x).a", "raise_exception(x)",
    "strftime_now(x)", "cycler(x).next()", "joiner(x)()", "[x, x] | join('-')", "[x, x] | list", "[[x]]", "[x] | sort", "[x, 1] | sort",
    "[x] | tojson", "{'a': x} | tojson", "x | string | length", "x is not defined", "x is not none", "x not in [1]", "x is eq x", "x is sameas x",
    "[x] | map('upper') | list", "[x] | select | list", "[{'k': x}] | selectattr('k') | list", "[{'k': x}] | map(attribute='k') | list",
    "[x, x] | unique | list", "{'a': x}.items() | list", "{'a': x}.get('a')", "{'a': x}.values() | list", "[x].index(x)", "[x].count(x)",
    "dict([(x, 1)])", "(x | length) > 1", "x | first | default('n')", "x | map('first') | list | length",
]  # fmt: skip

STATEMENTS = [
    "{{ x }}", "{{ x ~ x }}", "{% for a in x %}<{{ a }}>{% endfor %}", "{% for a in x %}{{ a }}{% else %}E{% endfor %}",
    "{% for a, b in x %}{{ a }}={{ b }};{% endfor %}", "{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in x | items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in x | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a in x if a %}{{ loop.index }}{{ a }}{% endfor %}", "{% for a in x if a is number %}{{ a }}{% else %}E{% endfor %}",
    "{% for a in x %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}",
    "{% for a in x %}{{ loop.previtem }}|{{ loop.nextitem }};{% endfor %}", "{% for a in x %}{{ loop.cycle('u', 'v') }}{{ loop.changed(a) }}{% endfor %}",
    "{% for a in x recursive %}{{ loop.depth }}{{ loop.depth0 }}{{ a }}{% endfor %}", "{% for a in x | reverse %}{{ a }}{% endfor %}",
    "{% for a in x[1:] %}{{ a }}{% endfor %}", "{% for a in x %}{% if loop.index > 1 %}{% break %}{% endif %}{{ a }}{% endfor %}",
    "{% for a in x %}{% if loop.first %}{% continue %}{% endif %}{{ a }}{% endfor %}", "{% set a, b = x %}{{ a }}{{ b }}", "{% set y = x %}{{ y }}",
    "{% set n = namespace(v=x) %}{{ n.v }}{% set n.v = 1 %}{{ n.v }}", "{% set n = namespace(v=0) %}{% for a in x %}{% set n.v = n.v + 1 %}{% endfor %}{{ n.v }}",
    "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(x) }}", "{% macro f(a, b=1) %}<{{ a }}{{ b }}>{% endmacro %}{{ f(x, b=x) }}{{ f(1, x) }}",
    "{% macro f(a, b=a) %}<{{ a }}{{ b }}>{% endmacro %}{{ f(x) }}", "{% macro f(a='d') %}<{{ a }}>{% endmacro %}{{ f(x) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(x, k=x) }}", "{% macro f(a) %}{{ a }}{{ varargs | length }}{% endmacro %}{{ f(x, x, x) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(x, x) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=x) }}",
    "{% macro f(a) %}{{ caller(a) }}{% endmacro %}{% call(c) f(x) %}[{{ c }}]{% endcall %}", "{% macro f() %}{{ x }}{% endmacro %}{{ f() }}",
    "{% call x() %}a{% endcall %}", "{% filter upper %}{{ x }}{% endfilter %}", "{% set y %}{{ x }}{% endset %}{{ y | length }}",
    "{% set y | trim %} {{ x }} {% endset %}{{ y }}", "{% with a = x, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% if x %}T{% else %}F{% endif %}",
    "{% if x is defined and x %}T{% elif x == 0 %}Z{% else %}F{% endif %}", "{% if not x %}N{% endif %}", "{% generation %}{{ x }}{% endgeneration %}",
    "{% include x %}", "{% include 'a' ignore missing %}{{ x }}", "{% import x as m %}{{ m }}", "{% from 'a' import b %}", "{% extends x %}",
    "{% block b %}{{ x }}{% endblock %}", "{% for a in [1] %}{% block b %}{{ a }}{% endblock %}{% endfor %}", "{% autoescape true %}{{ x }}{% endautoescape %}",
    "{% autoescape false %}{{ x }}{% endautoescape %}", "{% do x %}", "{% set x.a = 1 %}{{ x.a }}", "{% set x = x | default(5) %}{{ x }}",
    "{% for a in x %}{% set y = a %}{% endfor %}{{ y }}", "{% set y = 0 %}{% if true %}{% set y = x %}{% endif %}{{ y }}",
    "{% set g = x | map('string') %}{% for a in g %}{{ a }}{% endfor %}", "{% set g = x | map('string') %}{{ g | list }}{{ g | list }}",
    "{% set c = cycler('a', x) %}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}",
    "{% set j = joiner() %}{{ j() }}{{ x }}{{ j() }}", "{{ caller() }}", "{{ loop }}", "{{ self }}", "{{ super() }}", "{{ varargs }}{{ kwargs }}", "{{ lipsum() }}",
    "{% raw %}{{ x }}{% endraw %}", "{# c #}{{ x }}", "{{ f(**x) }}", "{{ dict(**x) }}", "{{ range(*x) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(**{'a': x}) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f.name }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f is callable }}{{ f is defined }}{{ f is string }}", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(x) }}",
    "{% for a in [[1, [2]], [3]] recursive %}({{ loop(a) if a is iterable else a }}){% endfor %}{{ x }}",
    "{{ 1 < x < 3 }}", "{{ 0 <= x <= x }}", "{{ x if x is string }}", "{{ (x if false) is defined }}", "{{ 'a' 'b' ~ x }}", "{{ x | upper | lower | trim }}",
    "{% set d = {'a': {'b': x}} %}{{ d.a.b }}{{ d['a']['b'] }}{{ d.a['b'] }}{{ d.c }}",
    "{% set m = [{'role': 'u', 'content': x}] %}{{ m[0].content }}{{ m[0]['role'] }}{{ m | last | attr('role') }}{{ m[-1]['content'] is string }}",
]  # fmt: skip

CONSTANTS = [
    "1 + 1", "1 + true", "true + true", "1 / 2", "4 / 2", "7 // 2", "-7 // 2", "-7 % 3", "7 % -3", "7.5 % 2", "-7.5 // 2", "2 ** 3", "2 ** -1", "2 ** 0.5",
    "0 ** 0", "1 / 0", "1 // 0", "1 % 0", "1.5 + 1", "'a' + 1", "'a' + 'b'", "'a' * 3", "3 * 'a'", "'a' * -1", "[1] * 2", "[1] + [2]", "(1,) + (2,)",
    "[1] + (2,)", "1 == 1.0", "1 == true", "'1' == 1", "[1] == (1,)", "none == false", "1 < 2", "1 < 'a'", "'a' < 'b'", "[1] < [2]", "[1, 'a'] < [1, 2]",
    "(1, 2) < (1, 3)", "none < 1", "true < 2", "1 < 2 < 3", "3 > 2 > 2", "1 in [1.0]", "'a' in 'abc'", "1 in 'abc'", "'a' in {'a': 1}", "1 in 1",
    "not 1", "not ''", "-true", "-'a'", "- 1.0", "1 ~ 'a' ~ none ~ true ~ 1.0", "1e3", "1_000", "0x1f", "0b11", "1.0e-7", "123456789012345678", "9007199254740993 + 0.0",
    "9223372036854775807 + 1", "2 ** 100", "10 ** 20", "1e16", "1e22 + 1", "0.1 + 0.2", "1e400", "'a\\tb'", "'\\u00e9'", "\"it's\"", "'it\\'s'", "[1, [2, (3,)], {'a': none}]",
    "()", "(1)", "(1,)", "{}", "{1: 2}", "{1: 2}[1]", "{1: 2}[true]", "{1: 2}[1.0]", "{1: 2, 1.0: 3}", "{true: 1}", "{none: 1}", "{(1, 2): 3}[(1, 2)]", "{[1]: 2}", "{'a': 1, 'a': 2}",
    "{1: 2} | tojson", "{none: 1, true: 2, 1.5: 3} | tojson", "{(1,): 2} | tojson", "{2: 'a', 1: 'b'} | dictsort", "[3, 1, 2] | sort", "['b', 'a', 'C'] | sort",
    "[1, 'a'] | sort", "[none, 1] | max", "[] | max", "[] | sum", "[] | first", "[true, 1, 1.0, 'a', 'A'] | unique | list", "'abc' | int", "'12' | int", "' 12 ' | int", "'1_0' | int", "'0x1f' | int(0, 16)",
    "'12.7' | int", "12.7 | int", "'1e3' | int", "'abc' | float", "'1.5' | float", "'inf' | float", "'nan' | float", "'1_0.5' | float", "none | int", "none | float", "true | int", "[] | int", "2.5 | round", "3.5 | round", "2.675 | round(2)",
    "42 | round", "42.7 | round(-1)", "-2.5 | round", "1234.5678 | round(2)", "'%05d|%-5s|%+d|%x|%o|%e|%g|%%' % (42, 'a', 3, 255, 8, 1.5, 0.0001)", "'%.2f' % 1.005", "'%s' % 'a'", "'%s %s' % ('a',)", "'%d' % 'a'",
    "'%c' % 'a'", "'%5s|' % 'ab'", "'%-5s|' % 'ab'", "'%.1s' % 'ab'", "'%i' % 3.9", "'a' % 1", "'%(a)s %(b)d' % {'a': 1, 'b': 2}", "'%*d' % (5, 1)", "'{}'.format(1)", "'{0} {1} {0}'.format('a', 'b')", "'{a}'.format(a=1)",
    "'{:5}|{:<5}|{:>5}|{:^5}|'.format('a', 'b', 'c', 'd')", "'{:05d}'.format(42)", "'{:.2f}'.format(3.14159)", "'{:,}'.format(1234567)", "'{!r}'.format('a')", "'{{}}'.format(1)", "'{a.b}'.format(a=1)", "'{0[0]}'.format([1])", "'{:x}'.format(255)", "'{:*^7}'.format('a')", "'{:+}'.format(1)", "'{:%}'.format(0.5)", "'{:e}'.format(1.5)", "'{} {0}'.format(1)", "'{'.format()", "'{:d}'.format('a')", "'{:s}'.format(1)", "'{}'.format([1, 'a'])",
    "'a b  c'.split(' ')", "'a b c'.rsplit(' ', 1)", "'abc'.index('c')", "'abc'.index('z')", "'a-b-c'.partition('-')", "'a-b-c'.rpartition('-')", "'42'.zfill(5)", "'-42'.zfill(5)", "'a'.center(4)", "'ab'.center(5, '*')",
    "'a'.ljust(3) ~ '|'", "'a'.rjust(3)", "'a\\tb'.expandtabs()", "'a\\tb\\n\\tc'.expandtabs(4)", "'ß'.casefold()", "'Straße'.upper()", "'ǆ'.title()", "'ß'.title()", "'ß'.capitalize()", "\"they're bill's\".title()", "\"they're bill's\" | title", "'HELLO-world (foo) [bar]' | title",
    "'aBc'.swapcase()", "'ABC'.islower()", "'Abc Def'.istitle()", "'a1_'.isidentifier()", "'1a'.isidentifier()", "'²'.isdigit()", "'½'.isnumeric()", "'٣'.isdecimal()", "'é'.isalpha()", "'中文'.isalpha()", "'e\u0301'.isalpha()", "'a b'.isprintable()", "'a\\n'.isprintable()", "''.isprintable()",
    "'hello world foo bar' | truncate(11)", "'hello world foo bar' | truncate(12, false, '...', 0)", "'hello world' | truncate(5, true)", "'hello world foo' | wordcount", "'a\\nb\\n\\nc' | indent", "'a\\nb\\n\\nc' | indent(2, true, true)", "'a\\n' | indent(2)", "'x' | center(5) ~ '|'", "'x' | center(6) ~ '|'",
    "'%s=%s' | format('a', 1)", "'%(a)s' | format(a=1)", "[1, 2, 3, 4, 5] | batch(2) | list", "[1, 2, 3] | batch(2, 'x') | list", "[1, 2, 3, 4, 5] | slice(3) | list", "[1, 2, 3] | slice(2, 'x') | list", "'<p>a &amp; b</p>' | striptags", "'<a>&\"\\'' | e", "('<' | e) ~ '<'", "('<' | safe) + '<'",
    "'a b/c?é' | urlencode", "{'a': 'b c', 'd': 1} | urlencode", "'http://a.b c' | urlize", "1000 | filesizeformat", "1 | filesizeformat", "1500000 | filesizeformat(true)", "{'a': 1, 'b': none} | xmlattr", "'a b c d' | wordwrap(3)", "{'a': [1, 2]} | pprint",
    "[{'a': 1, 'n': 'x'}, {'a': 2, 'n': 'y'}, {'a': 1, 'n': 'z'}] | groupby('a')", "[{'a': 1}, {'a': 2}, {'a': 1}] | groupby('a') | map('first') | list", "[{'a': 1}, {'a': 2}] | groupby('a') | map(attribute='list') | list", "[{'a': {'b': 1}}] | map(attribute='a.b') | list",
    "[[1, 2], [3]] | map('sum') | list", "[[1, 2], [3]] | sum(start=[])", "['a', 'b'] | map('replace', 'a', 'x') | join(',')", "[1, 2, 3] | select('divisibleby', 2) | list", "['a', 'B'] | map('lower') | sort | join", "range(5) | select('odd') | list", "range(5)[1]", "range(5)[1:3]", "range(1, 10, 3) | list", "range(10, 0, -4) | list", "range(3) | last", "range(3) == range(3)", "range(0) | length", "range(100001)", "range(1, 2, 0)", "range(3) | sum", "range(3) | join(',')", "2 in range(3)",
    "dict(a=1, b=2)", "dict([('a', 1)])", "dict({'a': 1}, b=2)", "dict.fromkeys(['a'], 1)", "dict", "range", "namespace", "dict is callable", "namespace(a=1) is mapping", "namespace({'a': 1}).a", "namespace(_a=1)", "namespace", "raise_exception('a')", "raise_exception()", "nofunction()", "joiner(',')() ~ 'a'", "cycler()", "cycler('a').current",
    "{'a': 1}.items() | first", "{'a': 1, 'b': 2}.keys() | list | join", "{'a': 1}.keys() == ['a']", "{'a': 1}.keys()[0]", "'a' in {'a': 1}.keys()", "1 in {'a': 1}.values()", "('a', 1) in {'a': 1}.items()", "{'a': 1}.keys() | tojson", "{'b': 1, 'a': 2} | tojson(sort_keys=true)", "{'a': {'b': [1, 2.0, none, true, 'é\"\\\\\\n']}} | tojson", "{'a': {'b': [1, {}]}, 'c': []} | tojson(indent=2)", "'</script>&\\'' | tojson", "nothing | tojson", "[nothing] | tojson", "{'a': nothing} | tojson", "range(2) | tojson", "namespace(a=1) | tojson", "(1, 2) | tojson", "1e400 | tojson", "[1] | map('string') | tojson",
    "nothing | int", "nothing | float", "nothing + 1", "nothing.a", "nothing['a']", "nothing()", "nothing | length", "nothing | list", "nothing | first", "nothing | join", "nothing == nothing", "nothing == none", "nothing < 1", "nothing in [1]", "1 in nothing", "nothing ~ 'a'", "not nothing", "nothing | default('a')", "nothing.a | default('a')", "nothing | sum", "nothing | upper", "nothing | trim", "nothing | string", "-nothing", "nothing | sort", "nothing | max",
    "none | list", "none | join", "none | sort", "none | reverse", "none | unique | list", "none | max", "none | sum", "none | length", "none | first", "none.a", "none['a']", "none()", "none + 1", "none | upper", "none | tojson", "none ~ 'a'", "none | items | list", "none | dictsort", "[{'a': 1}, {}] | sum(attribute='a')", "[{'a': 1}, {}] | sort(attribute='a')", "{'a': 1, 'b': 'x'} | dictsort(by='value')", "{'B': 1, 'a': 2} | dictsort",
    "[none, none] | unique | list", "[[1], [1]] | unique | list", "[{}, {}] | unique | list", "['a', none, 1, 'A'] | unique | list", "[1, none] | join(none)", "{'a': 1}.update({})", "[1].append(2)", "{'type': 'array'}.items", "{'items': 1}.items == 1", "{'items': {'a': 1}}['items']", "{}['items'] is defined", "{}.missing is defined", "'abc'.strip is defined", "{'b': 1} | attr('b')", "'a' | attr('upper')", "loop is defined", "self is defined", "messages", "tools", "documents", "add_generation_prompt", "bos_token",
    "'abc' is in 'abcd'", "1 is divisibleby(0)", "'a' is filter", "'upper' is filter", "'odd' is test", "true is boolean", "1 is boolean", "1 is integer", "true is integer", "true is number", "1.0 is integer", "1.0 is float", "'A' is upper", "'' is lower", "x is undefined", "1 is sameas 1", "true is sameas true", "'' is sequence", "{} is sequence", "{} is iterable", "range is iterable", "not 1 is odd", "1 is not odd", "2 is even and 3 is odd",
    "'a' if false", "('a' if false) is undefined", "[1, 2, 3][1:][0]", "'abc'[1]", "'abc'[-1]", "'abc'[5]", "'abc'['a']", "'abc'[1:2:3]", "[1, 2][true]", "[1, 2]['0']", "[1, 2].0", "(1, 2)[::-1]", "{'a': 1}[1:2]", "1[0]", "'a'.b", "'a'.b.c",
    "'a' | replace('a', 'b') | replace('b', 'c', count=1)", "'aaa' | replace('a', 'b', 2)", "'x' | indent(3, first=true)", "'abc' | list", "'abc' | reverse", "'abc' | first", "'abc' | last", "'abc' | length", "'cab' | sort", "'abca' | unique | join", "'abc' | batch(2) | list", "'abc' | map('upper') | list", "'abc' | max", "{'a': 1} | list", "{'b': 1, 'a': 2} | sort", "{'a': 1} | first", "{'a': 1} | length", "{'a': 1} | map('upper') | list", "{'a': 1} | join", "{'b': 1, 'a': 0} | max", "{'a': 1} | reverse | list", "{'a': 1} | last",
]  # fmt: skip

OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "~", "and", "or"]


def hashed(text):
    if len(text) <= 24 and not text.startswith("#"):
        return text
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"#{value:016x}"


def prelude(name, number):
    """Sets a variable to the value of a kind, by its number."""
    cases = (f"{{% {'elif' if place else 'if'} {number} == {place} %}}{{% set {name} = {kind} %}}" for place, kind in enumerate(KINDS))
    return "".join(cases) + "{% endif %}"


def results(source, variables):
    try:
        template = _compile_jinja_template(source)
    except Exception:
        return [0 for _ in variables]
    found = []
    for given in variables:
        try:
            text = template.render(messages=[], tools=None, documents=None, add_generation_prompt=False, **given)
            found.append(0 if " at 0x" in text else hashed(text))
        except Exception:
            found.append(0)
    return found


def main():
    expressions = OTHERS.copy()
    expressions += [f"x | {name}{arguments}" for name, all in FILTERS.items() for arguments in all if name != "random"]
    expressions += [f"x is {name}{arguments}" for name, all in TESTS.items() for arguments in all if name[0] not in "=!<>"]
    expressions += [f"[x] | select('{name}'{', ' if arguments else ''}{arguments.strip(' ()')}) | list" for name, all in TESTS.items() for arguments in all]
    expressions += [f"x.{name}{arguments}" for name, all in METHODS.items() for arguments in all]
    numbers = [{"i": number} for number in range(len(KINDS))]
    rows = []
    for body in [f"{{{{ [{expression}] }}}}" for expression in expressions] + STATEMENTS:
        rows.append([body, results(prelude("x", "i") + body, numbers)])
    for operator in OPERATORS:
        body = f"{{{{ [x {operator} y] }}}}"
        for number in range(len(KINDS)):
            pairs = [{"i": number, "j": other} for other in range(len(KINDS))]
            rows.append([[body, number], results(prelude("x", "i") + prelude("y", "j") + body, pairs)])
    for expression in CONSTANTS:
        body = f"{{{{ [{expression}] }}}}"
        rows.append([body, results(body, [{}])])
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    kinds = json.dumps(KINDS, ensure_ascii=False)
    Path(__file__).with_name("jinja.json").write_text(f'{{"kinds":{kinds},"rows":[\n{lines}\n]}}\n')
    count = sum(len(found) for _, found in rows)
    print(len(rows), "rows,", count, "results,", sum(result == 0 for _, found in rows for result in found), "errors")


if __name__ == "__main__":
    main()
