#!/bin/sh
# What do rows and batch cost, and what do they bring? A design of your own, without a preset: it prints its cells and
# what they are expected to take, then trains them, one after another, on this machine. Run it again and nothing is
# computed twice. Words are handed on: examples/study.sh study.dry_run=true
#
#   sh examples/study.sh
set -e
cd "$(dirname "$0")/.."
exec "${PYTHON:-.venv/bin/python}" src/run.py pipeline=study study.name=rows-and-batch \
    'study.factors={rows: [160, 480], batch: [8, 32]}' 'study.exclude=[{rows: 160, batch: 32}]' \
    epochs=1 data.max_rows=null data.max_length=64 optimizer.lr=2e-4 compute=cpu "$@"
