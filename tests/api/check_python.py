#!/usr/bin/env python3
"""The Python binding over the shared library: structs lie where the compiler puts them; a reply equals that of the same tokens picked
one by one; errors, closing and threads. usage: check_python.py LIBPFMOE.SO SIZES MODEL.gguf"""
import ctypes
import os
import re
import subprocess
import sys

library, sizes, model_path = sys.argv[1:]
sys.dont_write_bytecode = True
os.environ["PFMOE_LIBRARY"] = library
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python"))
if re.search("__(asan|tsan|ubsan)_", subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout):
    print("skipped: a sanitizer's runtime has to come before Python")
    sys.exit(77)
import pfmoe  # noqa: E402

STRUCTS = {"pf_model_opts": pfmoe._ModelOpts, "pf_model_info": pfmoe._ModelInfo, "pf_message": pfmoe._Message,
           "pf_session_opts": pfmoe._SessionOpts, "pf_sampler": pfmoe._Sampler}


def check_structs():
    for line in subprocess.run([sizes], check=True, capture_output=True, text=True).stdout.splitlines():
        struct, field, at = line.split()
        found = ctypes.sizeof(STRUCTS[struct]) if field == "size" else getattr(STRUCTS[struct], field).offset
        assert found == int(at), (line, found)


def raises(status, call):
    try:
        call()
    except pfmoe.Error as e:
        assert e.status == status and str(e), e
        return
    raise AssertionError("no error")


def main():
    check_structs()
    assert pfmoe.version()
    raises(-20, lambda: pfmoe.Model("/nonexistent.gguf"))
    with pfmoe.Model(model_path, device=-1, threads=1) as model:
        assert model.info["architecture"] == "qwen3moe" or model.info["n_experts"] > 0, model.info
        text = "A Fox and a Cat \N{LATIN SMALL LETTER U WITH DIAERESIS}."
        assert model.detokenize(model.tokenize(text)).decode() == text
        assert model.tokenize("") == []
        question = [("user", "Hello")]
        prompt = model.render(question)
        assert "Hello" in prompt
        tokens = model.tokenize(prompt, parse_special=True)
        with model.session(n_ctx=256) as session:
            assert session.n_ctx == 256 and session.logits() is None
            greedy = pfmoe.Sampling(temp=0)
            reply = "".join(session.chat(question, greedy, 20))
            picked = list(session.generate(tokens, greedy, 20))
            assert model.detokenize(picked).decode() == reply and reply, (reply, picked)
            assert session.sync(tokens) > 0 and len(session) == len(tokens)
            logits = session.logits()
            assert max(range(len(logits)), key=logits.__getitem__) == picked[0], "greedy takes the likeliest"
            session.rewind(3)
            assert len(session) == 3
            raises(-3, lambda: session.eval([1] * 500))
            assert len(session) == 3, "a failed call changes nothing"
            session.cancel()
            raises(-4, lambda: session.eval([1] * 5))
            seeds = ["".join(session.chat(question, pfmoe.Sampling(temp=1, seed=s), 8)) for s in (1, 1, 2)]
            assert seeds[0] == seeds[1], seeds
            try:
                model.close()
                raise AssertionError("closed under a session")
            except RuntimeError:
                pass
        try:
            len(session)
            raise AssertionError("a closed session")
        except RuntimeError:
            pass
    print(repr(reply))


main()
