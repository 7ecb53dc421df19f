"""Templates and what Python's jinja2 makes of them, with the settings that transformers gives it.

`make` renders the small templates below into `chat/jinja.json`: "variables" and "cases", each {"name", "template"} and
either "text" or, where jinja2 refuses, "line" (of the template, 0 where jinja2 names none).
`make_published` does the same for every template in the source package of llama-cpp-python and every conversation
of `conversations`, into build/reference/templates.json; the package is fetched and nothing of it is kept in the
repository.
"""

import datetime
import functools
import json
import subprocess
import sys
import tarfile
import traceback

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat import PLAIN, THOUGHTS, VISUAL
from .paths import FIXTURES, ROOT

NOW = datetime.datetime(2026, 11, 15, 13, 4, 5)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks the answers for training; when text is rendered it is only a scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment() -> ImmutableSandboxedEnvironment:
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = NOW.strftime
    return made


def write(path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


@functools.cache
def compiled(template: str):
    return environment().from_string(template)


def outcome(template: str, variables: dict) -> dict:
    try:
        return {"text": compiled(template).render(**variables)}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"line": error.lineno}
    except Exception as error:  # whatever Python raises inside a template
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == "<template>"]
        return {"line": lines[-1] if lines else 0}


MESSAGES = [
    {"role": "system", "content": " Be brief. \n"},
    {"role": "user", "content": "What's \"this\"? <é\u0301> 👩‍👧"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA cat.", "extra": None},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And\tthis?\\"}, {"type": "video"}]},
]
VARIABLES = {
    "messages": MESSAGES,
    "bos_token": "<s>",
    "numbers": [3, 1, 2, 1],
    "mixed": {"b": 1, "a": [True, None, 2.5, "x"], "c": {"d": {}, "e": []}, "A": 1e20, "f": -0.0001},
    "words": ["pear", "Apple", "fig", "apple"],
    "text": "  a-b  c\nd\r\ne  ",
    "empty": "",
    "nothing": None,
    "yes": True,
}

# Each is one template; names are made from the numbers.
TEMPLATES = [
    # white space
    "a\n  {% if yes %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%- if yes -%}\n  b\n  {%- endif -%}\n  c",
    "a \n  {%+ if yes +%}\n  b\n  {%+ endif %}\nc\n\n",
    "  {# comment #}\nx{# a #}\ny {#- b -#} z\n  {#+ c +#}\nend",
    "{{ 'a' -}}   \n b {{- 'c' }}\n{{ 'd' }}\n",
    "x {% raw %}{{ no }} {% if %}{% endraw %}\ny\n{%- raw -%}  {{ z }}  {%- endraw -%}  w",
    "\t{% for n in numbers %}\n\t{{ n }},\n\t{% endfor %}\n|",
    "one{% if yes %} two{% endif %}\n\nthree\r\nfour\rfive\n\n",
    "{% set x = 1 %}\n\n{{ x }}\u00a0{%- set y = 2 %}z",
    "   {{ 1 }}   {% if yes %}   {{ 2 }}   {% endif %}   ",
    # literals and operators
    "{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 / 2 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ -2 ** 2 }}",
    "{{ 1.5 + 1 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 10.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }}",
    "{{ 'a' ~ 1 ~ none ~ missing ~ 2.0 ~ true }} {{ 'a' 'b' \"c\" }} {{ 'x' * 3 }} {{ [1] * 2 + [2] }}",
    "{{ 'tab\\t|nl\\n|q\\'|b\\\\|u\\u00e9|x\\x41|o\\101|k\\k' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' in 'cat' }} {{ 'z' not in 'cat' }} {{ 2 in numbers }} {{ 'b' in mixed }}",
    "{{ not yes or yes and not empty }} {{ empty or 'else' }} {{ 'first' and 'second' }} {{ nothing is none and 1 }}",
    "{{ 'a' if yes else 'b' }} {{ 'a' if empty }} {{ ('x' if empty else 'y') ~ 'z' }} {{ 1 if 0 else 2 if 0 else 3 }}",
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' != 'b' }} {{ [1, 2] == [1, 2] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }}",
    "{{ (1, 2) }} {{ (1,) }} {{ () }} {{ [1, 'a', none, true, 1.0] }} {{ {'k': 'v', 1: [2]} }} {{ 1, 2 }}",
    "{{ 'it\\'s' }} {{ [\"it's\", 'say \"x\"', \"a'b\\\"c\", 'nl\\n', '\\x00\\x7f', 'é\u200b\U0001f469'] }}",
    # names, attributes, items, slices
    "{{ missing }}|{{ messages[0].missing }}|{{ messages[0]['role'] }}|{{ messages[-1].role }}|{{ messages[9] }}|",
    "{{ text[2] }}{{ text[-3] }}|{{ text[:3] }}|{{ text[::-1] }}|{{ numbers[1:] }}|{{ numbers[::2] }}|{{ numbers[5:] }}|{{ 'éa👩b'[1:3] }}",
    "{{ messages[1:][0].role }} {{ messages[::-1][0].role }} {{ numbers[-2:] }} {{ (1, 2, 3)[:2] }} {{ range(5)[1:3] | list }}",
    "{{ mixed.a.3 }} {{ mixed['c'].d }} {{ mixed.get('b') }} {{ mixed.get('zz') }} {{ mixed.get('zz', 'other') }}",
    "{% for k, v in mixed.items() %}{{ k }}={{ v }};{% endfor %}{{ mixed.keys() | list }}{{ mixed.values() | list | length }}",
    "{{ mixed.keys() }} {{ {'a': 1}.items() }} {{ mixed.items() | length }}",
    # loops
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined }}>{{ loop.nextitem.role }} {% endfor %}",
    "{% for n in numbers if n > 1 %}{{ loop.index }}:{{ n }} {% else %}none{% endfor %}{% for n in [] %}x{% else %}none{% endfor %}",
    "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for c in 'xyé' %}[{{ c }}]{% endfor %}",
    "{% set x = 0 %}{% for n in numbers %}{{ x }}{% set x = n %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(n=0, last=none) %}{% for n in numbers %}{% set ns.n = ns.n + n %}{% set ns.last = n %}{% endfor %}{{ ns.n }} {{ ns.last }} {{ ns.other }}",
    "{% for row in [[1, 2], [3]] %}{% for n in row %}{{ loop.index }}{{ loop.last }}{% endfor %}{{ loop.index }}|{% endfor %}",
    "{% for n in numbers %}{{ loop.cycle('odd', 'even') }}{{ loop.changed(n) }} {% endfor %}",
    "{% for t in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ t.n }}{{ loop.depth }}({{ loop(t.c) }}){% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for n in numbers if not ns.stop %}{{ n }}{% if n == 1 %}{% set ns.stop = true %}{% endif %}{% endfor %}",
    "{% if yes %}{% set seen = 1 %}{% endif %}{{ seen }}{% if empty %}a{% elif nothing %}b{% elif numbers %}c{% else %}d{% endif %}",
    "{% for n in numbers | sort %}{{ n }}{% endfor %}{% for k in mixed %}{{ k }}{% endfor %}{% for x in missing %}x{% endfor %}",
    # set, macros, calls, filters over blocks
    "{% set a, b = 1, 'two' %}{{ a }}{{ b }}{% set c %}\n  {{ a }} x\n{% endset %}[{{ c }}]{% set d | trim | upper %}  q {% endset %}[{{ d }}]",
    "{% macro m(a, b='B', c=a) %}\n<{{ a }}{{ b }}{{ c }}>\n{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
    "{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, x=3) }}",
    "{% macro w(t) %}[{{ caller(t) }}]{% endmacro %}{% call(u) w('q') %}{{ u }}!{% endcall %}",
    "{% macro fib(n) %}{{ n if n < 2 else (fib(n - 1) | int) + (fib(n - 2) | int) }}{% endmacro %}{{ fib(9) }}",
    "{% set late = 1 %}{% macro m() %}{{ late }}{% endmacro %}{% set late = 2 %}{{ m() }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% filter replace('a', 'o') | trim %} banana {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set a = 5 %}{{ a }}{% endwith %}{{ a }}",
    "{% generation %}answer{% set g = 1 %}{% endgeneration %}{{ g }}",
    "{% set x = namespace(a=1) %}{% set x.b = 'c' %}{{ x.a }}{{ x.b }}{{ x['a'] }}{{ dict(a=1, b=2) }}{{ dict([('k', 'v')]) }}",
    "{{ range(3) | list }}{{ range(1, 8, 3) | list }}{{ range(3, 0, -1) | list }}{{ range(0) | list }}",
    # filters
    "{{ text | trim }}|{{ text | length }}|{{ 'aXb' | upper }}{{ 'aXb' | lower }}{{ 'hELLO wORLD' | capitalize }}|{{ \"they're bill's-x\" | title }}",
    "{{ missing | default('d') }}{{ empty | default('d') }}{{ empty | default('d', true) }}{{ nothing | default('d') }}{{ nothing | default('d', boolean=true) }}{{ missing | d }}",
    "{{ numbers | join('-') }}{{ messages | join(', ', attribute='role') }}{{ [] | join }}{{ 'abc' | join('.') }}{{ [1, none, 'a'] | join }}",
    "{{ numbers | first }}{{ numbers | last }}{{ [] | first }}{{ 'abc' | last }}{{ numbers | sort | join }}{{ numbers | sort(reverse=true) | join }}",
    "{{ words | sort | join(',') }} {{ words | sort(case_sensitive=true) | join(',') }} {{ words | unique | join(',') }} {{ words | unique(true) | join(',') }}",
    "{{ numbers | max }}{{ numbers | min }}{{ numbers | sum }}{{ numbers | reverse | list }}{{ 'abc' | reverse }}{{ [{'a': 1}, {'a': 5}] | sum(attribute='a') }}",
    "{{ messages | map(attribute='role') | list }}{{ words | map('upper') | join }}{{ messages | map(attribute='extra', default='-') | list }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | join }}{{ messages | selectattr('extra') | list }}{{ messages | selectattr('extra', 'defined') | list | length }}",
    "{{ numbers | select('odd') | list }}{{ numbers | reject('odd') | list }}{{ [0, 1, '', 'a'] | select | list }}{{ numbers | select('>', 1) | list }}",
    "{% if messages | selectattr('role', 'equalto', 'nobody') %}always{% endif %}{% if messages | selectattr('role', 'equalto', 'nobody') | list %}never{% endif %}",
    "{{ mixed | tojson }}",
    "{{ mixed | tojson(indent=2) }}\n{{ [1, [2, {}], []] | tojson(indent=4) }}",
    "{{ mixed | tojson(separators=(',', ':'), sort_keys=true) }} {{ 'é\"\\\\/\\x01\\x7f\U0001f469' | tojson }} {{ 'é\U0001f469' | tojson(ensure_ascii=true) }}",
    "{{ messages | tojson }}{{ none | tojson }}{{ 1.0 | tojson }}{{ {1: 2, true: 3, none: 4} | tojson }}",
    "{{ 'banana' | replace('a', 'o') }}{{ 'banana' | replace('a', 'o', 2) }}{{ 'abc' | replace('', '-') }}{{ 12 | replace(1, 'x') }}",
    "{{ 'a\\n\\nb\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'a\\nb' | indent('> ') }}|{{ 'x' | indent }}",
    "{{ '12' | int }}{{ 'x' | int }}{{ 'x' | int(7) }}{{ 3.9 | int }}{{ '3.9' | int }}{{ 'ff' | int(0, 16) }}{{ ' 5 ' | int }}{{ '1.5' | float }}{{ 'x' | float }}{{ 3 | float }}",
    "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(0, 'ceil') }} {{ -3 | abs }} {{ 2.9 | round(method='floor') }}",
    "{{ 5 | string ~ 'x' }}{{ nothing | string }}{{ '<b>' | safe }}{{ \"<a href='x'>&\\\"\" | escape }}{{ 'a b  c_d' | wordcount }}{{ '%s is %d%% %.2f' | format('x', 5, 1.239) }}",
    "{{ mixed | items | list | length }}{{ mixed | dictsort | map('first') | join }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}{{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}",
    "{{ {'b': 1}.items() | list }}{{ words | list | length }}{{ 'ab' | list }}{{ mixed | list }}{{ numbers | count }}{{ missing | length }}",
    "{{ 'x=%s' % 1 }}{{ '%s-%s' % ('a', 'b') }}{{ '%05d|%-4s|%4s|%r' % (42, 'l', 'r', 'q') }}",
    # tests
    "{{ missing is defined }}{{ yes is defined }}{{ missing is undefined }}{{ nothing is none }}{{ empty is not none }}{{ yes is true }}{{ yes is boolean }}{{ 1 is true }}",
    "{{ 'a' is string }}{{ 1 is string }}{{ numbers is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ mixed is mapping }}{{ numbers is mapping }}{{ numbers is sequence }}{{ 'a' is sequence }}{{ mixed is sequence }}{{ 1 is sequence }}",
    "{{ 1 is number }}{{ 1.0 is number }}{{ true is number }}{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ 3 is odd }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}",
    "{{ 1 is eq 1 }}{{ 1 is ne(1) }}{{ 1 is lt 2 }}{{ 1 is ge 2 }}{{ 'a' is in ['a'] }}{{ 'a' is in 'abc' }}{{ none is sameas none }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'trim' is filter }}",
    "{{ 'x' if missing is not defined and yes is defined else 'y' }}{{ not missing is defined }}{{ raise_exception is callable }}",
    # string methods
    "{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ '\\n\\nq\\n'.strip('\\n') }}",
    "{{ text.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a b c'.rsplit(' ', 1) }}{{ ''.split(',') }}{{ ''.split() }}{{ 'a  b c'.split(none, 1) }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}{{ 'banana'.find('n') }}{{ 'banana'.rfind('n') }}{{ 'x'.find('y') }}{{ 'banana'.count('an') }}",
    "{{ 'a-b'.replace('-', '+') }}{{ 'ab'.upper() }}{{ 'AB'.lower() }}{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}{{ '-'.join(['a', 'b']) }}{{ '7'.zfill(3) }}{{ 'ab'.ljust(4) }}|{{ 'ab'.rjust(4, '.') }}",
    "{{ 'a=b=c'.partition('=') }}{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}{{ '{} and {}'.format(1, 'b') }}{{ '{1}{0}{{}}{name}'.format(1, 2, name='n') }}",
    "{{ '12'.isdigit() }}{{ 'a1'.isalpha() }}{{ 'a1'.isalnum() }}{{ ' '.isspace() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}{{ ''.isdigit() }}{{ 'straße'.upper() }}{{ 'ÀÉ'.lower() }}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }}{{ messages[2]['content'].split('<think>')[1].split('</think>')[0] | trim }}",
    "{{ numbers.index(2) }}{{ numbers.count(1) }}{{ (1, 2).index(2) }}",
    "{{ strftime_now('%d %B %Y %H:%M') }}{{ strftime_now('') }}",
    "{{ messages[3] }}{{ messages[3].content[0] }}",
    # a whole chat template
    "{{ bos_token }}{% for m in messages %}\n{%- if m.role == 'system' and loop.first %}\n<sys>{{ m.content | trim }}</sys>\n{%- elif m.content is string %}\n[{{ m.role | upper }}]{{ m['content'] }}\n{% else %}\n{%- for c in m.content %}{% if c.type == 'image' or 'image' in c %}<img>{% elif c['type'] == 'video' %}<vid>{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}\n{% endif %}\n{%- endfor %}{% if add_generation_prompt %}[ASSISTANT]{% endif %}",
    # what is refused
    "a\nb\n{{ missing.x }}",
    "{% if yes %}\n{{ nothing.x.y }}{% endif %}",
    "\n\n{{ raise_exception('no ' ~ 1) }}",
    "{% for m in messages %}\n\n{{ 'x' + m.missing }}{% endfor %}",
    "{{ 'a' + 1 }}",
    "{{ numbers.append(1) }}",
    "{{ mixed.update({'a': 1}) }}",
    "\n{{ 1 // 0 }}",
    "{{ messages | selectattr('role') | length }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ missing() }}",
    "{{ 'a' < 1 }}",
    "\n{{ missing | tojson }}",
    "{{ 'x' in 5 }}",
    "{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}",
    "{% set numbers.x = 1 %}",
    "{% set a, b = [1] %}",
    "{{ range(1000000) | length }}",
    "a\n{% if yes %}\nb",
    "a\n{{ 1 + }}",
    "{% endif %}",
    "{% for x y %}{% endfor %}",
    "{{ 'open }}",
    "\n{% nosuch %}",
    "{{ (1 }}",
    "{# open",
    "{% raw %}x",
    "{{ a b }}",
    "{% break %}",
    "{% set %}{% endset %}",
    # other files, and what Python has behind a value
    "\n{% include 'other' %}",
    "a\n{% import 'other' as o %}",
    "{% from 'other' import thing %}",
    "{% extends 'other' %}",
    "{% extends '/etc/passwd' %}{% block a %}{% endblock %}",
    "{{ ''.__class__ }}",
    "\n{{ messages.__class__.__mro__ }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ ''['__class__'] }}",
    "{{ numbers.__len__() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ open('/etc/passwd') }}",
]


def make() -> None:
    cases = []
    for number, template in enumerate(TEMPLATES):
        cases.append({"name": f"template {number}", "template": template, **outcome(template, VARIABLES)})
    write(FIXTURES / "chat" / "jinja.json", {"variables": VARIABLES, "cases": cases})


def package_templates() -> dict[str, str]:
    """The templates of llama-cpp-python's source package, by name."""
    folder = ROOT / "build" / "reference" / "llama-cpp-python"
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob("*.tar.gz")):
        # pip runs the package's build backend to read its metadata.
        for what in (["install", "scikit-build-core"], ["download", "--no-binary", "llama-cpp-python", "--no-deps",
                     "--no-build-isolation", "-d", str(folder), "llama-cpp-python"]):
            subprocess.run([sys.executable, "-m", "pip", "-q", *what], check=True)
    found = {}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:
            if "/llama.cpp/models/templates/" in member.name and member.name.endswith(".jinja"):
                found[member.name.rsplit("/", 1)[1]] = archive.extractfile(member).read().decode()
    return found


def conversations() -> dict[str, list]:
    chosen = {f"parts {name}": messages for name, messages in VISUAL.items()}
    chosen |= {f"plain {name}": messages for name, messages in {**PLAIN, **THOUGHTS}.items()}
    chosen["plain long"] = [{"role": "system", "content": " Rules:\n- be brief "}] + [
        {"role": role, "content": f" {role} {i}\n"} for i in range(4) for role in ("user", "assistant")
    ]
    return chosen


def make_published() -> None:
    templates = package_templates()
    for path in sorted((FIXTURES / "models").glob("*/chat_template.*")) + [ROOT / "models/kinora-tiny/chat_template.json"]:
        content = path.read_text()
        name = f"{path.parent.name}/{path.name}"
        templates[name] = json.loads(content)["chat_template"] if path.suffix == ".json" else content
    common = {"tools": None, "documents": None, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
              "unk_token": "<unk>"}
    out = []
    for name, template in templates.items():
        cases = []
        for conversation, messages in conversations().items():
            for prompt in (True, False):
                for options in ({}, {"enable_thinking": False}):
                    variables = {"messages": messages, "add_generation_prompt": prompt, **common, **options}
                    case = {"name": f"{conversation} {prompt} {options}", "variables": variables}
                    cases.append({**case, **outcome(template, variables)})
        out.append({"name": name, "template": template, "cases": cases})
    write(ROOT / "build" / "reference" / "templates.json", out)
    texts = sum("text" in case for one in out for case in one["cases"])
    print(f"{len(out)} templates, {sum(len(one['cases']) for one in out)} cases, {texts} of them rendered")
