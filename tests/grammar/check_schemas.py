#!/usr/bin/env python3
"""Outputs of JSON schemas against an independent validator, the Python package jsonschema.

usage: check_schemas.py GRAMMAR_TOOL VOCAB WALKS FILE...     (VOCAB: a GGUF file, or - for a small vocabulary)

A FILE is an array of {"description", "schema", "tests": [{"data", "valid", "description"}]}, the form of the published
JSON-Schema-Test-Suite, whose folder tests/draft2020-12 may be given as well. Of each schema that is not refused, WALKS random
outputs must be JSON that the validator accepts; none of its invalid data may be accepted. An entry "refused" holds what the
sentence of a schema that is to be refused must have in it; "accepts_all": valid data must be accepted, too. Skipped (77)
where there is no jsonschema."""
import json
import os
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print('skipped: the Python package jsonschema is not installed')
    sys.exit(77)


def run(tool, vocab, args, lines):
    text = ''.join(line + '\n' for line in lines)
    p = subprocess.run([tool, vocab, *args], input=text.encode(), capture_output=True, check=False)
    if p.returncode != 0:
        sys.exit('%s ended with %d: %s' % (tool, p.returncode, p.stdout[-300:]))
    return p.stdout.decode(errors='replace').splitlines()


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def outputs(tool, vocab, n, schemas):
    """For each schema the sentence of its refusal, or a list of its walks."""
    lines, at, found = run(tool, vocab, ['walks', 'schema', '1', str(n)], map(dump, schemas)), 0, []
    for _ in schemas:
        refused = at < len(lines) and lines[at].startswith('refused')
        found.append(lines[at] if refused else lines[at:at + n])
        at += 1 if refused else n
    return found


def fails(schema, walk):
    """Why an output is wrong, or None."""
    if walk == 'unfinished':
        return None
    text = bytes.fromhex(walk).decode()
    try:
        value = json.loads(text)
    except ValueError as e:
        return 'no JSON: %s: %r' % (e, text)
    draft = jsonschema.Draft202012Validator
    validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
    error = next(validator.iter_errors(value), None)
    return '%s: %r' % (error.message, text) if error else None


def cases_of(paths):
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = [os.path.join(folder, f) for folder, _, names in os.walk(path) for f in sorted(names)]
        for f in files:
            with open(f, encoding='utf-8') as text:
                for case in json.load(text):
                    yield f, case


def main():
    tool, vocab, n_walks = sys.argv[1:4]
    cases = list(cases_of(sys.argv[4:]))
    found = outputs(tool, vocab, int(n_walks), [case['schema'] for _, case in cases])
    bad, n_refused, n_outputs, unfinished, texts = [], 0, 0, 0, []
    for (path, case), got in zip(cases, found):
        where = '%s: %s' % (os.path.basename(path), case['description'])
        if isinstance(got, str):
            n_refused += 1
            if 'accepts_all' in case or case.get('refused', '') not in got:
                bad.append('%s: %s' % (where, got))
            continue
        if 'refused' in case:
            bad.append('%s: not refused' % where)
        for walk in got:
            n_outputs += 1
            unfinished += walk == 'unfinished'
            why = fails(case['schema'], walk)
            if why:
                bad.append('%s: %s: %s' % (where, dump(case['schema'])[:200], why))
        texts += [(where, case, test) for test in case.get('tests', [])]
    answers = run(tool, vocab, ['accepts', 'schema'], [dump(c['schema']) + '\t' + dump(t['data']) for _, c, t in texts])
    counts = {}
    for (where, case, test), answer in zip(texts, answers):
        counts[test['valid'], answer] = counts.get((test['valid'], answer), 0) + 1
        if answer == 'yes' and not test['valid']:
            bad.append('%s: accepted though invalid: %s' % (where, dump(test['data'])[:200]))
        if answer != 'yes' and test['valid'] and case.get('accepts_all'):
            bad.append('%s: valid and not accepted: %s' % (where, dump(test['data'])[:200]))
    print('\n'.join(bad[:60]))
    print('%d schemas, %d of them refused; %d outputs, %d of them without an end; valid data accepted: %d of %d; invalid: %d of '
          '%d; %d failures' % (len(cases), n_refused, n_outputs, unfinished, counts.get((True, 'yes'), 0),
                               sum(v for k, v in counts.items() if k[0]), counts.get((False, 'yes'), 0),
                               sum(v for k, v in counts.items() if not k[0]), len(bad)))
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
