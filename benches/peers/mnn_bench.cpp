// Measures MNN once: `mnn_bench FOLDER THREADS ATTENTION prefill|decode TOKENS CONTEXT`, with a folder of
// mnn_convert.py.
//
// ATTENTION is MNN's option of that name: 8 keeps queries and keys unquantized, 9 converts them to INT8, both in blocks
// of keys. Prefill is the time of a prompt of TOKENS random tokens until its most probable next one is known; decode
// generates TOKENS tokens after CONTEXT others. Prints tokens per second as JSON. `mnn_bench FOLDER THREADS ATTENTION
// generate TOKENS ID...` prints the most probable tokens after a prompt, to check that the model computes correctly.
//
// It does the work of MNN's own class for language models, which its crate omits: a module for prompts, a clone of it
// for single tokens, and setting the size of the KV cache before each step. Rows of embeddings are looked up, and sines
// and cosines computed, outside the module.

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <MNN/Interpreter.hpp>
#include <MNN/expr/Executor.hpp>
#include <MNN/expr/ExecutorScope.hpp>
#include <MNN/expr/Expr.hpp>
#include <MNN/expr/ExprCreator.hpp>
#include <MNN/expr/Module.hpp>

#include "core/KVMeta.hpp"

using namespace MNN;
using namespace MNN::Express;

static void fail(const std::string& why) {
    std::fprintf(stderr, "error: %s\n", why.c_str());
    std::exit(1);
}

class Model {
public:
    Model(const std::string& folder, int threads, int attention) {
        std::ifstream description(folder + "/model.txt");
        if (!(description >> vocabulary >> hidden >> headDim >> ropeBase)) {
            fail("no " + folder + "/model.txt");
        }
        for (int pair = 0; pair < headDim / 2; ++pair) {
            frequencies.push_back(std::pow(ropeBase, -2.0 * pair / headDim));
        }
        int file = open((folder + "/embeddings.f16").c_str(), O_RDONLY);
        size_t bytes = size_t(vocabulary) * hidden * sizeof(_Float16);
        void* mapped = file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped == MAP_FAILED) {
            fail("no " + folder + "/embeddings.f16");
        }
        embeddings = static_cast<const _Float16*>(mapped);

        BackendConfig backend;
        backend.memory = BackendConfig::Memory_Low;  // weights stay quantized, activations become INT8
        backend.precision = BackendConfig::Precision_Low;
        ScheduleConfig schedule;
        schedule.type = MNN_FORWARD_CPU;
        schedule.numThread = threads;
        schedule.backendConfig = &backend;
        runtime.reset(Executor::RuntimeManager::createRuntimeManager(schedule), Executor::RuntimeManager::destroy);
        runtime->setHint(Interpreter::INIT_THREAD_NUMBER, 4);
        runtime->setHint(Interpreter::MEM_ALLOCATOR_TYPE, 0);
        runtime->setHint(Interpreter::ATTENTION_OPTION, attention);
        runtime->setHintPtr(Interpreter::KVCACHE_INFO, &cache);
        runtime->setExternalFile(folder + "/llm.mnn.weight");
        Module::Config config;
        config.shapeMutable = true;
        config.rearrange = true;
        std::vector<std::string> inputs{"hidden", "cos", "sin", "last"};
        prompt.reset(Module::load(inputs, {"logits"}, (folder + "/llm.mnn").c_str(), runtime, &config), Module::destroy);
        if (!prompt) {
            fail("no model in " + folder);
        }
        runtime->setExternalFile("");
        runtime->setHintPtr(Interpreter::KVCACHE_INFO, &cache);
        single.reset(Module::clone(prompt.get()), Module::destroy);
    }

    // Clears the KV cache.
    void reset() {
        position = 0;
    }

    // Returns the most probable token after these, which follow all earlier tokens.
    int next(const std::vector<int>& tokens) {
        int count = tokens.size();
        auto rows = _Input({count, hidden, 1, 1}, NCHW, halide_type_of<float>());
        auto cosines = _Input({count, headDim}, NCHW, halide_type_of<float>());
        auto sines = _Input({count, headDim}, NCHW, halide_type_of<float>());
        auto last = _Input({1}, NCHW, halide_type_of<int>());
        float *row = rows->writeMap<float>(), *cosine = cosines->writeMap<float>(), *sine = sines->writeMap<float>();
        for (int index = 0; index < count; ++index) {
            const _Float16* embedding = embeddings + size_t(tokens[index]) * hidden;
            std::copy(embedding, embedding + hidden, row + size_t(index) * hidden);
            for (int pair = 0; pair < headDim / 2; ++pair) {
                float angle = (position + index) * frequencies[pair];
                size_t place = size_t(index) * headDim + pair, other = place + headDim / 2;
                cosine[place] = cosine[other] = std::cos(angle);
                sine[place] = sine[other] = std::sin(angle);
            }
        }
        last->writeMap<int>()[0] = count - 1;
        cache.remove = position == 0 ? cache.previous : 0;
        cache.add = count;
        auto outputs = (count == 1 ? single : prompt)->onForward({rows, cosines, sines, last});
        const float* logits = outputs.empty() ? nullptr : outputs[0]->readMap<float>();
        if (!logits || outputs[0]->getInfo()->size != size_t(vocabulary)) {
            fail("no logits");
        }
        cache.sync();
        position += count;
        return std::max_element(logits, logits + vocabulary) - logits;
    }

    int vocabulary = 0;

private:
    int hidden = 0, headDim = 0, position = 0;
    double ropeBase = 0;
    std::vector<float> frequencies;
    const _Float16* embeddings = nullptr;
    KVMeta cache;
    std::shared_ptr<Executor::RuntimeManager> runtime;
    std::shared_ptr<Module> prompt, single;
};

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the tokens per second of one run.
static double measure(Model& model, std::mt19937& random, bool prefill, int tokens, int context) {
    std::vector<int> prompt(prefill ? tokens : context);
    for (int& token : prompt) {
        token = 100 + random() % (std::min(model.vocabulary, 40000) - 100);
    }
    model.reset();
    double start = seconds();
    int token = model.next(prompt);
    if (!prefill) {
        start = seconds();
        for (int index = 0; index < tokens; ++index) {
            token = model.next({token});
        }
    }
    return tokens / (seconds() - start);
}

int main(int count, char** words) {
    if (count < 7) {
        fail("mnn_bench FOLDER THREADS ATTENTION, then prefill|decode TOKENS CONTEXT or generate TOKENS ID...");
    }
    Model model(words[1], std::atoi(words[2]), std::atoi(words[3]));
    std::string kind = words[4];
    int tokens = std::atoi(words[5]);
    if (kind == "generate") {
        std::vector<int> prompt;
        for (int index = 6; index < count; ++index) {
            prompt.push_back(std::atoi(words[index]));
        }
        for (int index = 0; index < tokens; ++index) {
            prompt = {model.next(prompt)};
            std::printf("%d ", prompt[0]);
        }
        std::printf("\n");
        return 0;
    }
    if (kind != "prefill" && kind != "decode") {
        fail("no " + kind);
    }
    std::mt19937 random(0);
    bool prefill = kind == "prefill";
    int context = std::atoi(words[6]);
    measure(model, random, prefill, prefill ? tokens : 4, context);
    double rate = measure(model, random, prefill, tokens, context);
    std::printf("{\"tokens_per_second\": %.3f}\n", rate);
}
