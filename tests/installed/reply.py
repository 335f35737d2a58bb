"""The Python binding on an installed library: prints the reply to "Hello". usage: reply.py MODEL"""
import sys

import pfmoe

with pfmoe.Model(sys.argv[1]) as model, model.session() as session:
    print("".join(session.chat([("user", "Hello")], pfmoe.Sampling(temp=0))))
