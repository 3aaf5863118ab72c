"""Make runtime/llm/tests/golden/chat/environment.json: results of the environment in which Hugging
Face transformers renders chat templates (`_cached_compile_jinja_template` in
`transformers/utils/chat_template_utils.py`), built here with jinja2 alone.

Each result is the rendered text, or `null` where jinja2 raises an exception.

    python3 -m venv .venv-chat
    .venv-chat/bin/pip install jinja2==3.1.6
    .venv-chat/bin/python tools/make_chat_golden.py \
        -o runtime/llm/tests/golden/chat/environment.json
"""

import argparse
import json
from datetime import datetime
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Folder of short templates with the constructs in templates of well-known families of models.
TEMPLATES = Path(__file__).parent / "chat_templates"
NOW = datetime(2026, 3, 7, 9, 5, 3)

CONTEXT = {
    "n": 3,
    "f": 2.5,
    "big": 1e16,
    "s": "Hello World",
    "text": "  some text\nwith lines\r\nand\ttabs  ",
    "uni": "Grüße, 你好 é",
    "empty": "",
    "yes": True,
    "no": False,
    "nothing": None,
    "numbers": [3, 1, 2],
    "floats": [1.0, 2.5, 1e-05],
    "words": ["pear", "Apple", "fig"],
    "d": {"b": 1, "a": "x", "C": None},
    "nested": {"items": [1, 2], "keys": "k", "list": [{"x": 1}, {"x": 2, "y": True}]},
    "users": [
        {"name": "Bo", "age": 30, "on": True},
        {"name": "al", "age": 25, "on": False},
        {"name": "Cy", "age": 30},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 'this' & <that>?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt.", "tool_calls": None},
    ],
    "tool": {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather — now",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "A city"},
                    "days": {"type": ["integer", "null"], "default": 3, "enum": [1, 2, 3]},
                },
                "required": ["city"],
            },
        },
    },
}

CALL = {
    "type": "function",
    "id": "abc123def",
    "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2], "x": None}},
}

# Chats with the variables that a caller passes beside them.
CHATS = [
    {"messages": [{"role": "user", "content": " Hello, 'you' & <me>! \n"}]},
    {
        "messages": [
            {"role": "system", "content": "Be brief.\n"},
            {"role": "user", "content": "你好 {{ x }} % {% y %}"},
        ],
        "enable_thinking": False,
        "controls": {"length": "short"},
    },
    {
        "messages": [
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo. "},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "<think>\noh\n</think>\n\nThus."},
        ],
        "add_generation_prompt": False,
        "documents": [{"text": "One."}, {"text": "Two."}],
    },
    {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"rain": true}'},
            {"role": "assistant", "content": "It rains."},
        ],
        "tools": [CONTEXT["tool"]],
    },
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image"}]},
        ],
    },
    {
        "messages": [
            {"role": "user", "content": "One"},
            {"role": "user", "content": "Two"},
        ],
    },
]

# Expressions, one per line, by topic.
EXPRESSIONS = {
    "tests": """
none is iterable
nothing is iterable
missing is iterable
s is iterable
n is iterable
d is iterable
numbers is iterable
d is iterable and d is not string
s is iterable and s is not string
d is iterable and d is not mapping
yes is iterable
none is sequence
s is sequence
empty is sequence
numbers is sequence
(1, 2) is sequence
d is sequence
n is sequence
range(3) is sequence
d.items() is iterable
d.items() is mapping
d is mapping
s is mapping
numbers is mapping
none is mapping
missing is mapping
dict(a=1) is mapping
s is string
n is string
none is string
missing is string
n is number
f is number
yes is number
s is number
none is number
n is integer
f is integer
yes is integer
2.0 is integer
n is float
f is float
yes is float
yes is boolean
n is boolean
yes is true
n is true
1 is true
no is false
0 is false
none is none
missing is none
missing is undefined
missing is defined
d.zzz is defined
d['b'] is defined
d.C is defined
n is odd
n is even
4 is even
n is divisibleby 3
n is divisibleby(2)
s is lower
s is upper
'abc' is lower
'ABC' is upper
'123' is lower
n is eq 3
n is equalto(4)
n == 3.0
n is ne 3
n is lt 4
n is lessthan 3
n is le 3
n is gt 2
n is greaterthan(3)
n is ge 4
'a' is in 'abc'
1 is in numbers
'b' is in d
'x' is in d.values()
'upper' is filter
'nosuch' is filter
'tojson' is filter
'even' is test
'nosuch' is test
none is sameas none
yes is sameas true
n is sameas 3
s is escaped
s is not none
not s is none
s is nosuchtest
""",
    "methods of strings": """
s.removeprefix('Hello ')
s.removeprefix('x')
s.removesuffix('World')
s.removesuffix('')
'a,b,c,d'.rsplit(',', 1)
'a,b,c,d'.rsplit(',')
'a,b'.rsplit(',', maxsplit=1)
'a,b,c'.rsplit(sep=',', maxsplit=1)
'a=b=c'.partition('=')
'abc'.partition('=')
'a=b=c'.rpartition('=')
'abc'.rpartition('=')
'abc'.partition('')
'hello'.index('z')
'hello'.find('z')
uni.find('é')
'ab'.rjust(5, 'xy')
s.upper()
s.lower()
uni.upper()
s.title()
'hello wORLD'.capitalize()
''.capitalize()
text.strip()
text.lstrip()
text.rstrip()
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'abcba'.rstrip('ab')
'  a '.strip(none)
'a-b-c'.replace('-', '+')
'a-b-c'.replace('-', '+', 1)
'abc'.replace('', '.')
'a-b'.replace('-')
'a b  c'.split()
'a b  c'.split(' ')
'a,b,c'.split(',', 1)
'a,b,c'.split(',', maxsplit=1)
'a,b,c'.split(sep=',')
' a  b '.split(none, 1)
''.split()
''.split(',')
'abc'.split('')
'a\\nb\\r\\nc\\n'.splitlines()
'a\\nb\\n'.splitlines(true)
text.splitlines()
'</think>' in messages[2].content
messages[2].content.split('</think>')[-1].lstrip('\\n')
messages[2].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n')
'abc'.startswith('a')
'abc'.startswith(('x', 'a'))
'abc'.endswith('c')
'abc'.endswith(('x', 'bc'))
'abc'.startswith(1)
'banana'.count('an')
'banana'.count('')
', '.join(words)
'-'.join('abc')
'-'.join(d)
'abc'.isalpha()
'ab1'.isalnum()
'12'.isdigit()
'½'.isnumeric()
'²'.isdigit()
''.isdigit()
' \\n'.isspace()
'abc'.islower()
'ABC1'.isupper()
'abc'.isascii()
uni.isascii()
'{} and {}'.format(1, 'x')
'{0}-{1}-{0}'.format('a', 'b')
'{name}: {age:>4}'.format(name='Bo', age=3)
'{:.2f}'.format(3.14159)
'{:,}'.format(1234567)
'{:05d}'.format(42)
'{}'.format(none)
'{}'.format(1e16)
'{}'.format([1, 'a'])
'{0[a]}'.format(d)
'{'.format(1)
'{}'.format()
'abc'.nosuch()
'abc'.__class__
s.length
""",
    "methods of lists and mappings": """
numbers.index(9)
numbers.index(3, 1)
numbers.count(3)
words.count('x')
(1, 2, 2).count(2)
numbers.append(4)
d.update({'z': 1})
numbers.pop()
numbers.nosuch()
d.get('b')
d.get('zz')
d.get('zz', 'default')
d.get('C', 'default')
d.get()
d.keys() | list
d.values() | list
d.items() | list
d.nosuch()
nested.items() | list | length
nested.keys() | list
nested['items']
nested['keys']
nested.list
dict(a=1, b=2)
dict({'a': 1}, b=2)
namespace(a=1).a
namespace({'a': 2}).a
""",
    "filters": """
'a long text' | truncate(2)
s | upper
s | lower
s | title
"they're here-now (ok)" | title
s | capitalize
n | upper
none | upper
text | trim
'xxaxx' | trim('x')
n | trim
'a-b' | replace('-', '+')
'aaa' | replace('a', 'b', 2)
n | replace('3', '4')
s | length
d | length
numbers | count
missing | length
n | length
none | length
d.items() | length
range(4) | length
d | dictsort
{'b': 2, 'a': 3} | dictsort(by='value')
{'b': 2, 'a': 3} | dictsort(reverse=true)
d | items | list
missing | items | list
numbers | reverse | list
s | reverse
d | reverse | list
numbers | join
numbers | join(', ')
floats | join(' ')
words | join(d='/')
[none, true, 1.5] | join(' ')
d | join('')
missing | default('x')
none | default('x')
none | default('x', true)
'' | d('x', boolean=true)
missing | default(default_value='y')
d.zzz | default
missing.attr | default('x')
2.567 | round
2.567 | round(1)
2.5 | round
3.5 | round
-2.5 | round
1234 | round(-2)
2.1 | round(method='ceil')
2.987 | round(2, 'floor')
3 | round
2.5 | round | int
n | abs
-2.5 | abs
'a' | abs
'42' | int
'4.7' | int
'x' | int(7)
'0x1f' | int(base=16)
'ff' | int(0, 16)
none | int
f | int
-2.7 | int
yes | int
'4.5' | float
'x' | float(1.5)
n | float
'1e3' | float
'inf' | float
numbers | first
numbers | last
s | first
s | last
[] | first
[] | last
d | first
numbers | min
numbers | max
words | min
words | max
[] | max
users | max(attribute='age')
numbers | sort
words | sort
words | sort(case_sensitive=true)
numbers | sort(reverse=true)
users | sort(attribute='name') | map(attribute='name') | list
users | sort(attribute='age,name') | map(attribute='name') | join
d | sort
s | list
d | list
n | list
n | string
f | string
none | string
yes | string
numbers | string
big | string
numbers | batch(2) | list
numbers | batch(2, 0) | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
numbers | sum
floats | sum
users | sum(attribute='age')
users | sum('age', 100)
[] | sum
words | sum
'a\\nb\\n\\nc' | indent
'a\\nb\\n\\nc' | indent(2, true)
'a\\nb\\n\\nc' | indent(2, blank=true)
'a\\nb' | indent(first=true, width=1)
numbers | select('odd') | list
numbers | reject('odd') | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
numbers | select('gt', 1) | list
numbers | select('>', 1) | list
users | selectattr('on') | map(attribute='name') | list
users | selectattr('age', 'equalto', 30) | map(attribute='name') | list
users | selectattr('on', 'defined') | list | length
users | rejectattr('on') | map(attribute='name') | list
users | rejectattr('age', '==', 30) | list | length
messages | selectattr('role', 'in', ['user', 'system']) | list | length
users | map(attribute='on') | list
users | map(attribute='on', default='?') | list
words | map('upper') | list
words | map('replace', 'p', 'q') | join(' ')
words | map('nosuch') | list
users | groupby('age') | map(attribute='grouper') | list
users | groupby('on', default=false) | map('first') | list
['a', 'A', 'b', 'a'] | unique | list
users | unique(attribute='age') | map(attribute='name') | list
'%s is %d' | format('x', 3)
'%(a)s' | format(a=1)
'%5.1f|' | format(2.25)
'<b>' | safe
users | attr('name')
s | nosuchfilter
""",
    "tojson": """
tool | tojson
tool | tojson(indent=2)
tool | tojson(indent=4)
tool | tojson(indent=0)
uni | tojson
uni | tojson(ensure_ascii=true)
uni | tojson(true)
'😀' | tojson(ensure_ascii=True)
'a"\\\\b\\n\\t\\x08\\x0c\\x1f\\x7f/' | tojson
'<a> & \\'b\\'' | tojson
d | tojson
d | tojson(sort_keys=true)
{'b': {'z': 1, 'y': 2}, 'a': 1} | tojson(sort_keys=true)
d | tojson(separators=(',', ':'))
d | tojson(separators=[',', ': '])
d | tojson(indent=2, separators=(',', ' = '))
numbers | tojson(indent=1)
numbers | tojson(indent='--')
numbers | tojson(indent='\\t')
numbers | tojson(separators=(', ',))
{10: 1, 9: 2} | tojson(sort_keys=true)
{(1, 2): 3} | tojson
(1, 2) | tojson
[] | tojson(indent=2)
{} | tojson(indent=2)
[[], {}, [1]] | tojson(indent=2)
[1.0, 2.5, 1e16, 1e-7, 100000.0] | tojson
[true, false, none] | tojson
123456789012345678901 | tojson
missing | tojson
d.items() | list | tojson
s | tojson | length
tool | tojson(nosuch=1)
tool | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)
tool | tojson(false, 2)
[s, n] | map('tojson') | join(';')
""",
    "percent": """
'%s and %s' % (s, n)
'%d' % 'x'
'%5d|%-5d|%05d' % (1, 2, 3)
'%x %X %o' % (255, 255, 8)
'%(zz)s' % d
'%%' % ()
'100%%' % ()
'%s' % ()
'%s %s' % 'a'
'a' % 1
s % 1
7 % 3
-7 % 3
7.5 % 2
7 % 0
n % 2 == 1
n * 7 % 4
20 // n % 4
10 - 7 % 4
2 * 3 % 4 * 5
'%s' % n | length
loop_index % 2 if loop_index is defined else 'none'
words[4 % 3]
'%s' % (n if n % 2 else 0)
5 % 3 ** 2
not 4 % 2
'{%}' ~ ' % ' ~ '}}'
""",
    "functions": """
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y')
strftime_now('%A, %B %d, %Y')
strftime_now('%H:%M:%S %p %I')
strftime_now('%j %U %W %w %y %a')
strftime_now('%-d %-m %-H')
strftime_now('%%')
strftime_now('%e|%F|%T|%D|%R')
strftime_now('')
strftime_now('%c')
strftime_now('%x %X')
strftime_now('%G-W%V-%u')
strftime_now()
raise_exception('no')
raise_exception()
range(3) | list
range(1, 7, 2) | list
range(3, 0, -1) | list
range(200000) | length
range(1, 2, 0)
cycler()
joiner('-')()
joiner()() ~ '|'
dict() | length
nosuch()
""",
    "numbers": """
1e16
1e15
123456789.0
1e22
1e-4
1e-5
0.1 + 0.2
1.0
100.0
big
floats
[1e16, 1e-05]
1 / 3
4 / 2
7 // 2
-7 // 2
7.0 // 2
2 ** 10
2 ** -1
2 ** 0.5
2 ** 100
1 / 0
1_000
0x1f
0b101
0o17
1e3
-n
- -n
1 + true
true + true
n * 1.0
1.5e300 * 1e300
n + 1.5
'a' * 3
3 * 'ab'
[1] * 2
10 ** 20
9007199254740993 + 0
1 == 1.0
1 == true
1 < 2 < 3
1 < 2 > 3
1 == 1 == true
f | round(3)
1234567.891 | round(2)
""",
    "text of values": """
none
true
numbers
words
d
(1, 2)
(1,)
()
[]
{}
[none, true, 1.5, 'a']
["it's", 'say "x"', 'both \\' and "']
['a\\nb\\t\\\\']
['\\x00\\x7f', 'é', '你']
{'a': [1, {'b': 'c'}]}
{1: 'a', none: 2, true: 3}
[missing]
d.items() | list
[(1, 'a')]
nested
(numbers | map('upper') | list)[0]
numbers | select | first
s ~ n ~ none ~ f
s ~ numbers
1 ~ 2
'a' ~ missing ~ 'b'
s[0]
s[-1]
s[1:4]
s[::-1]
s[::2]
s[100]
numbers[0]
numbers[-1]
numbers[1:]
numbers[::-1]
numbers[:-1]
numbers[5]
numbers[1:] + [7]
numbers[1:] == [1, 2]
messages[1:] | length
messages[::-1][0].role
(1, 2) + (3,)
[1] + [2]
[1] + (2,)
{'a': 1}.a
{'a': 1}['b']
{'a': 1, 'a': 2}
uni[7:9]
""",
    "operators": """
1 in [1, 2]
'x' not in 'abc'
'a' in d
1 in d
s in none
s in missing
missing == none
missing == missing
missing
missing.attr
missing['attr']
missing()
missing + 1
missing ~ 1
not missing
missing or 'x'
missing and 'x'
none.attr
none['x']
n.attr
n.attr.more
none + 1
'a' + 1
1 + 'a'
'a' + none
'1' * '2'
s - 1
-s
s < 'z'
[1] < [2]
[1, 2] == [1, 2]
[1, 2] == (1, 2)
d == {'a': 'x', 'b': 1, 'C': none}
not none
not []
[] or {} or 0 or 'end'
'' and 'x'
1 and 2
'yes' if n else 'no'
'yes' if missing
'a' if false else 'b' if true else 'c'
(1 if true else 2) + 1
n if n > 5
true and not false
not true == false
1 if s else 2 ~ 3
'a' 'b'
"tab\\tnew\\\\"
'\\u00e9\\x41'
s.upper().lower()
messages[0]['role'] ~ ':' ~ messages[0].content | upper
(messages | last).role
messages[-1].tool_calls is none
messages[0].tool_calls is defined and messages[0].tool_calls
d.b.c.d
true
True
None
False
null
""",
}

# Templates, by topic.
STATEMENTS = {
    "namespaces": [
        "{% set ns = namespace(n=0) %}{% for x in numbers %}{% set ns.n = ns.n + x %}{% endfor %}"
        "{{ ns.n }}",
        "{% set ns = namespace() %}{% set ns.x = 'a' %}{{ ns.x }}{{ ns.y is defined }}",
        "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}",
        "{% set d.x = 1 %}",
        "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{{ ns.a }}",
        "{% set ns = namespace(a=1) %}{{ ns['a'] }}",
    ],
    "loops": [
        "{% for x in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}"
        "{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
        "{% for x in numbers %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}",
        "{% for x in numbers %}{{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
        "{% for x in numbers if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}",
        "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in missing %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in n %}{{ x }}{% endfor %}",
        "{% for x in 'ab' %}{{ x }}.{% endfor %}",
        "{% for k in d %}{{ k }}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
        "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
        "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}",
        "{% for a, b in [[1, 2], [3]] %}{{ a }}{% endfor %}",
        "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
        "{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in numbers %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }})"
        "{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
        "{% for m in messages[::-1] %}{{ m.role }}{{ loop.index0 }} {% endfor %}",
        "{% for x in range(2) %}{% for y in range(2) %}{{ loop.index }}{% endfor %}"
        "{{ loop.index }}{% endfor %}",
        "{% break %}",
        "{% for i in range(1, numbers | length) %}{{ numbers[i] }}{% endfor %}",
        "{% set j = joiner() %}{% for x in numbers %}{{ j() }}{{ x }}{% endfor %}",
        "{% for x in numbers %}{% if loop.index0 % 2 == 0 %}{{ x }}{% endif %}{% endfor %}",
        "{% if (messages[0].role == 'user') != (2 % 2 == 0) %}odd{% else %}even{% endif %}",
        "{% set x = '%s-%s' % (n, s) %}{{ x }}",
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
        "{% set x %}in {{ n }}{% endset %}{{ x | upper }}",
        "{% set x | upper %}in {{ n }}{% endset %}{{ x }}",
    ],
    "macros": [
        "{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
        "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ x }}{% if x > 0 %}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
        "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{% endcall %}",
        "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
        "{% macro m() %} a {% endmacro %}{{ m() | trim }}|{{ m() is string }}",
        "{%- macro m(v) -%}\n  {%- if v is mapping -%}map{%- elif v is string -%}str"
        "{%- elif v is iterable -%}list{%- else -%}{{ v }}{%- endif -%}\n{%- endmacro -%}\n"
        "{{ m(d) }},{{ m(s) }},{{ m(numbers) }},{{ m(none) }},{{ m(n) }}",
    ],
    "white space": [
        "  {% if true %}\n  a\n  {% endif %}\nb\n",
        "  {%- if true %}\n  a\n  {%- endif %}\nb\n",
        "  {%+ if true %}\n  a\n  {%+ endif %}\nb\n",
        "{% if true -%}\n  a\n{%- endif -%}\n  b\n",
        "{{ n }}\n{{ n }}\n\n",
        "{{- ' a ' -}}  b  {{- ' c ' }}",
        "a\n{# comment #}\nb {#- c -#} d\n",
        "  {# comment #}  \nx",
        "{% raw %}{{ n }}{% if %}{% endraw %}",
        "{# {% generation %} '%s' % 1 #}x",
        "a{%- set x = 1 -%} b",
        "{% if true %}\n\n{% endif %}|",
        "\r\n{% if true %}\r\nx\r\n{% endif %}\r\n",
        "a\n\n",
        "100 % sure {% if 5 % 3 %}5 % 3{% endif %}",
    ],
    "generation": [
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endif %}{% endfor %}",
        "{%- generation -%}  a  {%- endgeneration -%}  b",
        "{% generation %}\n a\n{% endgeneration %}\nb",
        "  {%- generation %}\na{% endgeneration %}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{% generation %}",
        "{% endgeneration %}",
        "{%generation%}a{%endgeneration%}",
    ],
    "statements": [
        "{% if n == 3 %}a{% elif n == 4 %}b{% else %}c{% endif %}",
        "{% if missing %}a{% else %}b{% endif %}",
        "{% if missing.x %}a{% endif %}",
        "{% filter upper %}a{{ n }}b{% endfilter %}",
        "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
        "{% block x %}a{% endblock %}",
        "{% do n %}",
        "{% nosuch %}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% extends 'x' %}",
        "{% if n %}",
        "{{ n",
        "{{ }}",
        "{{ 1 + }}",
        "{% set n = n + 1 %}{{ n }}",
        "{% if x is not defined %}{% set x = 'set' %}{% endif %}{{ x }}",
        "{% set role = {'user': 'U'}.get('user', 'X') %}{{ role }}",
        "{{ {'a': 1,} }}{{ [1,] }}",
    ],
}


def build_environment():
    """Builds the environment of transformers 5, with a fixed clock."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def strftime_now(format):
        return NOW.strftime(format)

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_generation_support")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        @jinja2.pass_eval_context
        def _generation_support(self, context, caller):
            return caller()

    class TemplateDict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    class TemplateNamespace(jinja2.utils.Namespace):
        def __init__(*args, **kwargs):
            self, args = args[0], args[1:]
            attributes = dict(*args, **kwargs)
            for name in attributes:
                TemplateNamespace._check_name(name)
            jinja2.utils.Namespace.__init__(self, attributes)

        def __setitem__(self, name, value):
            TemplateNamespace._check_name(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

        @staticmethod
        def _check_name(name):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"{name!r} begins with an underscore")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = TemplateDict()
    environment.globals["namespace"] = TemplateNamespace
    return environment


def render(source, context):
    """Renders a template; returns None if it raises an exception."""
    try:
        text = build_environment().from_string(source).render(**context)
    except Exception:
        return None
    if " at 0x" in text:
        raise ValueError(f"the text of {source} has an address")
    return text


def list_templates():
    """Yields all short templates with their topics."""
    for topic, lines in EXPRESSIONS.items():
        for line in lines.strip().split("\n"):
            yield topic, "{{ " + line + " }}"
    for topic, sources in STATEMENTS.items():
        for source in sources:
            yield topic, source


def add_defaults(chat):
    """Adds the variables that transformers always passes to a chat."""
    defaults = {"tools": None, "documents": None, "add_generation_prompt": True}
    return defaults | {"bos_token": "<s>", "eos_token": "</s>"} | chat


def render_family(path):
    """Renders all chats by the template of a family of models."""
    source = path.read_text(encoding="utf-8")
    texts = [render(source, add_defaults(chat)) for chat in CHATS]
    return {"family": path.stem, "template": source, "texts": texts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    cases = [
        {"topic": topic, "template": source, "text": render(source, CONTEXT)}
        for topic, source in list_templates()
    ]
    golden = {
        "now": NOW.isoformat(),
        "context": CONTEXT,
        "cases": cases,
        "chats": [add_defaults(chat) for chat in CHATS],
        "families": [render_family(path) for path in sorted(TEMPLATES.glob("*.jinja"))],
    }
    text = json.dumps(golden, ensure_ascii=False, indent=1)
    args.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
