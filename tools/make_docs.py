#!/usr/bin/env python3
"""Manual pages and shell completions, from what the programs say of themselves.

usage: make_docs.py man PROGRAM TEMPLATE VERSION          the template with @OPTIONS@ and @VERSION@ filled in
       make_docs.py bash|zsh|fish PROGRAM                 a completion for the program's long flags"""
import os
import re
import subprocess
import sys


def output_of(program, flag):
    return subprocess.run([program, flag], check=True, capture_output=True, text=True).stdout


def flags_in(help_text):
    """(flag, what its value is called or '', first line of its help) for every long flag."""
    found = re.findall(r'^ +(?:-\w, )?--([a-z][a-z-]*)((?: [A-Z|a-z0-9=\[\],.]+)?) *(?:  (.*))?$', help_text, re.M)
    return [(name, arg.strip(), (text or '').strip()) for name, arg, text in found]


def choices(arg):
    """The words that a value may be, where the help says so: auto|on|off."""
    return [word for word in arg.split('|') if not re.search('[A-Z]', word)] if '|' in arg else []


def options_as_man(program):
    return output_of(program, '--help-man').strip()


def man(program, template, version):
    text = open(template, encoding='utf-8').read()
    return text.replace('@OPTIONS@', options_as_man(program)).replace('@VERSION@', version)


def bash(name, flags):
    words = ' '.join('--' + f for f, _, _ in flags)
    takes = '|'.join('--' + f for f, arg, _ in flags if arg and not choices(arg))
    chosen = ''.join('    --%s) COMPREPLY=($(compgen -W "%s" -- "$word")); return ;;\n' % (f, ' '.join(choices(arg)))
                     for f, arg, _ in flags if choices(arg))
    func = '_' + name.replace('-', '_')
    return ('%s()\n{\n    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n'
            '    case $before in\n%s    %s|-m|-f) COMPREPLY=($(compgen -f -- "$word")); return ;;\n    esac\n'
            '    case $word in\n    -*) COMPREPLY=($(compgen -W "%s" -- "$word")) ;;\n'
            '    *) COMPREPLY=($(compgen -f -- "$word")) ;;\n    esac\n}\ncomplete -o filenames -F %s %s\n') % (
                func, chosen, takes, words, func, name)


def zsh(name, flags):
    quoted = [re.sub(r"([\[\]:'])", '', text) for _, _, text in flags]
    values = [':value:(%s)' % ' '.join(choices(arg)) if choices(arg) else ':value:_files' if arg else '' for _, arg, _ in flags]
    specs = ["'--%s[%s]%s'" % (f, q, value) for (f, _, _), q, value in zip(flags, quoted, values)]
    return '#compdef %s\n_arguments -s \\\n    %s \\\n    \'*:file:_files\'\n' % (name, ' \\\n    '.join(specs))


def fish(name, flags):
    values = [" -x -a '%s'" % ' '.join(choices(arg)) if choices(arg) else ' -r' if arg else '' for _, arg, _ in flags]
    return ''.join("complete -c %s -l %s%s -d '%s'\n" % (name, f, value, text.replace("'", ''))
                   for (f, _, text), value in zip(flags, values))


def main():
    form, program = sys.argv[1], sys.argv[2]
    if form == 'man':
        text = man(program, sys.argv[3], sys.argv[4])
    else:
        text = {'bash': bash, 'zsh': zsh, 'fish': fish}[form](os.path.basename(program), flags_in(output_of(program, '--help')))
    sys.stdout.write(text)


if __name__ == '__main__':
    main()
