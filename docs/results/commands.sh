# How the records with options of their own were made; the others take the defaults.
# FILE and PYTHON stand for a model and an interpreter.

python -m benchmarks compare --model tiny --model small --peer ideal --peer vllm \
    --peer vllm-compiled --vllm-python PYTHON --at-once 1,4,8,16,32,48 --rounds 2
python -m benchmarks capacity --at-once 8,32,128,256,896
python -m benchmarks laptop --model FILE.gguf --llama PYTHON --transformers --installed PYTHON
python -m benchmarks inferlets --only "EBNF decoding" --only "attention sink" \
    --only "hierarchical attention" --round-trip 10 --rounds 2 --at-once 2 --no-prefix-cache

# At ad264f02, with what has been closed since:
python -m benchmarks inferlets --only toolbox --only "toolbox, cached" \
    --only "toolbox, cached, early" --only "toolbox, cached, early, dropped" --round-trip 10 \
    --rounds 1 --at-once 16 --no-prefix-cache
python -m benchmarks inferlets --only "toolbox by turns" --only "toolbox by turns, cached" \
    --only "toolbox by turns, cached, dropped" --round-trip 10 --rounds 1 --at-once 32 \
    --no-prefix-cache
python -m benchmarks inferlets --only speculation --round-trip 10 --rounds 3 --at-once 4
