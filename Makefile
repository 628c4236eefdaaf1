# `make demo` sets up and trains a federation on real data; `make test` runs everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PyTorch's CPU wheels; set it empty where pip already finds a CPU build.
TORCH_INDEX_URL ?= https://download.pytorch.org/whl/cpu
export PATH := $(CURDIR)/$(BIN):$(PATH)
PROTOS = $(shell find proto -name '*.proto' | sort)

.PHONY: setup setup-base demo test lint proto bench images test-containers clean

proto:
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --grpc_python_out=proto \
		--mypy_out=quiet:proto --mypy_grpc_out=quiet:proto $(PROTOS)
