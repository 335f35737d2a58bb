#!/usr/bin/env python3
"""--json-schema and --grammar: answers of the bundled model have the form, and sentences where that cannot be."""
import json
import os
import re

import cli

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'models', 'fables.gguf')
SCHEMA = {'type': 'object', 'properties': {'animal': {'enum': ['fox', 'crow']}, 'legs': {'type': 'integer', 'minimum': 2, 'maximum': 4},
          'wise': {'type': 'boolean'}}, 'required': ['animal', 'legs', 'wise'], 'additionalProperties': False}


def answer(*args):
    return cli.run('-m', MODEL, '-t', '1', '-n', '200', '--seed', '3', '-p', 'The fox and the crow', *args)


with cli.scratch() as tmp:
    def file(name, text):
        with open(os.path.join(tmp, name), 'w', encoding='utf-8') as f:
            f.write(text)
        return f.name

    for temp in ('0', '1'):
        r = answer('--json-schema', file('s.json', json.dumps(SCHEMA)), '--temp', temp)
        value = json.loads(r.stdout) if r.returncode == 0 else r.stderr
        cli.check(isinstance(value, dict) and list(value) == ['animal', 'legs', 'wise'] and 2 <= value['legs'] <= 4, value)
        r = answer('--grammar', file('g.gbnf', 'root ::= "The " [a-z]{3} ", " ("the " [a-z]{4} "."){2}'), '--raw', '--temp', temp)
        cli.check(re.fullmatch(rb'The [a-z]{3}, (the [a-z]{4}\.){2}\n', r.stdout), r.stdout, r.stderr)
    for args, words in ((['--json-schema', file('bad.json', '{"not": {}}')], b'bad.json: the schema at "": not is not supported'),
                        (['--grammar', file('bad.gbnf', 'root ::= x')], b'bad.gbnf: the grammar has no rule "x"'),
                        (['--grammar', os.path.join(tmp, 'none')], b'none: No such file'),
                        (['--grammar', 'a', '--json-schema', 'b'], b'exclude each other')):
        r = answer(*args)
        cli.check(r.returncode != 0 and words in r.stderr and r.stdout == b'', args, r.stderr)
cli.finish()
