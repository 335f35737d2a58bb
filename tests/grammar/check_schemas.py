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
import random
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


def constants_cases():
    """Many constants that begin or end alike, in all the ways in which a schema lists them: each is accepted, and nothing else."""
    r = random.Random(1)

    def word(letters, most):
        return ''.join(r.choice(letters) for _ in range(r.randint(0, most)))

    def text():
        return word(r.choice(('ab', 'aé\U0001f600', 'a"\\\n\x01', 'abcdefghijklmnopqrstuvwxyz')), 9)

    def value(deep=2):
        return r.choice((text, text, lambda: r.randint(-20, 2000), lambda: r.randint(-40, 40) / 8, lambda: r.choice((True, False, None)),
                         lambda: [value(0) for _ in range(r.randint(0, 3 * deep))],
                         lambda: {text(): value(0) for _ in range(r.randint(0, 2 * deep))}))()

    def case(description, schema, valid, invalid):
        known = {dump(v) for v in valid}
        tests = [{'data': v, 'valid': True} for v in r.sample(valid, min(30, len(valid)))]
        tests += [{'data': v, 'valid': False} for v in invalid if dump(v) not in known]
        return 'made', {'description': description, 'schema': schema, 'accepts_all': True, 'tests': tests}

    letters = 'abcdefghijklmnopqrstuvwxyz'
    many = list({word(letters, 11) for _ in range(21500)})[:20000]
    near = [w[:-1] for w in many[:20]] + [w + 'a' for w in many[:20]] + [w[:1] + 'q' + w[1:] for w in many[:20]]
    yield case('an enum of 20,000 words', {'enum': many}, many, near)
    yield case('a property of 20,000 words', {'type': 'object', 'properties': {'w': {'enum': many}}, 'required': ['w'], 'additionalProperties': False},
               [{'w': w} for w in many[:50]], [{'w': w} for w in near if w not in many])
    yield case('anyOf of 20,000 consts', {'anyOf': [{'const': w} for w in many]}, many, near)
    yield case('oneOf of 20,000 consts', {'oneOf': [{'const': w, 'title': 'A word'} for w in many]}, many, near)
    yield 'made', {'description': 'oneOf with a const twice', 'schema': {'oneOf': [{'const': w} for w in many + many[:1]]}, 'refused': 'oneOf'}
    yield case('all beginnings of a word', {'enum': ['a' * i for i in range(1000)]}, ['a' * i for i in range(1000)], ['a' * 1000, 'b', 'ab'])
    for i in range(40):
        some = [json.loads(v) for v in {dump(value()) for _ in range(r.choice((1, 5, 60, 300)))}]
        some = [v for k, v in enumerate(some) if v not in some[:k] and not any(v is w for w in (True, False))] or [1]
        others, half = [value() for _ in range(30)], len(some) // 2
        invalid = [v for v in others if v not in some]
        yield case('enum %d' % i, {'enum': some}, some, invalid)
        yield case('anyOf %d' % i, {'anyOf': [{'const': v} for v in some]}, some, invalid)
        yield case('anyOf of enums %d' % i, {'anyOf': [{'enum': some[:half] or [0]}, {'$ref': '#/$defs/b'}], '$defs': {'b': {'enum': some[half:]}}},
                   some[half:], [v for v in invalid if v != 0])
        yield case('an enum in anyOf beside a type %d' % i, {'type': ['string', 'null'], 'anyOf': [{'enum': some}, {'const': 'beside'}, {'type': 'null'}]},
                   ['beside', None] + [v for v in some if isinstance(v, str)], [v for v in others + some if v not in some and v is not None or
                                                                              not isinstance(v, (str, type(None)))])
        yield case('an enum and a pattern %d' % i, {'enum': some + ['ab'], 'pattern': '^a', 'maxLength': 6, 'type': 'string'},
                   ['ab'] + [v for v in some if isinstance(v, str) and v.startswith('a') and len(v) <= 6],
                   [v for v in some if isinstance(v, str) and (not v.startswith('a') or len(v) > 6)])


def main():
    tool, vocab, n_walks = sys.argv[1:4]
    cases = list(cases_of(sys.argv[4:])) + list(constants_cases())
    found = outputs(tool, vocab, int(n_walks), [case['schema'] for _, case in cases])
    bad, n_refused, n_outputs, unfinished, texts, lines = [], 0, 0, 0, [], []
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
        if case.get('tests'):
            lines.append('\t'.join([dump(case['schema'])] + [dump(test['data']) for test in case['tests']]))
    answers = run(tool, vocab, ['accepts', 'schema'], lines)
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
