"""Asks the server at a port of this machine "Hello" and prints its answer. usage: ask.py PORT"""
import json
import sys
import time
import urllib.request

base = "http://127.0.0.1:%s" % sys.argv[1]
for _ in range(100):
    try:
        urllib.request.urlopen(base + "/health", timeout=5).read()
        break
    except OSError:
        time.sleep(0.1)
body = json.dumps({"model": "default", "temperature": 0, "messages": [{"role": "user", "content": "Hello"}]}).encode()
request = urllib.request.Request(base + "/v1/chat/completions", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]["content"])
