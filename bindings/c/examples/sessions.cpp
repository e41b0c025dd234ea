// Two conversations on separate threads, with one model: each gives the same answer as alone.
//
//     c++ -std=c++11 -pthread sessions.cpp $(pkg-config --cflags --libs triad) -o sessions && ./sessions [MODEL]

#include <triad.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

using Model = std::unique_ptr<TriadModel, void (*)(TriadModel *)>;
using Session = std::unique_ptr<TriadSession, void (*)(TriadSession *)>;

static void check(TriadStatus status) {
    if (status != TRIAD_STATUS_OK) throw std::runtime_error(triad_last_error());
}

static Model open(const char *name) {
    TriadModel *model = nullptr;
    check(triad_model_open(name, nullptr, nullptr, &model));
    return Model(model, triad_model_free);
}

static std::string answer(const TriadModel *model, const std::string &question) {
    TriadSession *opened = nullptr;
    check(triad_session_new(model, &opened));
    Session session(opened, triad_session_free);
    TriadGenerateOptions options = triad_generate_options_default();
    options.max_tokens = 24;
    options.temperature = 0;
    TriadMessage message = {"user", question.c_str()};
    std::string text;
    auto append = [](const char *part, void *user) -> int32_t {
        *static_cast<std::string *>(user) += part;
        return 0;
    };
    check(triad_session_chat(session.get(), &message, 1, &options, nullptr, append, &text, nullptr));
    return text;
}

int main(int argc, char **argv) try {
    Model model = open(argc > 1 ? argv[1] : "smollm2-135m");
    const std::string questions[] = {"Name three colours.", "What is a number?"};
    std::string alone[2], together[2];
    for (int i = 0; i < 2; i++) alone[i] = answer(model.get(), questions[i]);
    std::thread threads[2];
    for (int i = 0; i < 2; i++)
        threads[i] = std::thread([&, i] { together[i] = answer(model.get(), questions[i]); });
    for (auto &thread : threads) thread.join();
    for (int i = 0; i < 2; i++) std::cout << questions[i] << "\n" << together[i] << "\n\n";
    if (alone[0] != together[0] || alone[1] != together[1]) throw std::runtime_error("the answers differ");
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
