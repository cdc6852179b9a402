// Runs the built program as a child process, in a folder of the test's own.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace switchyard::cli_test {

using Arguments = std::vector<std::string>;

struct Finished {
  int status = -1;  // exit status; 128 + the signal that ended it; -1 after two minutes without an end
  std::string out, err;  // everything that was written
};

inline Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Two MoE layers with some thousand float32 weights. Later arguments on a command line win.
inline Arguments tiny_model() {
  return {"decoder_block=mixtral",
          "base_emb_dim=16",
          "base_num_query_heads=2",
          "base_num_kv_heads=2",
          "head_dim=8",
          "base_mlp_dim=16",
          "base_num_decoder_layers=2",
          "num_experts=4",
          "num_experts_per_tok=2",
          "vocab_size=32",
          "max_target_length=8",
          "per_device_batch_size=2",
          "steps=3",
          "learning_rate=0.01",
          "dtype=float32",
          "enable_checkpointing=false",  // a second run of the same name starts from scratch
          "base_output_directory=out",
          "run_name=run"};
}

// A fresh folder, the child's working directory; removed at the end.
class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() {
    // A shell starts background jobs with both ignored, and children would inherit that.
    for (const int signal : {SIGINT, SIGQUIT}) ::signal(signal, SIG_DFL);
    std::string name = (std::filesystem::path(::testing::TempDir()) / "switchyard_cli.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr) << name;
    folder_ = name;
    std::filesystem::create_directory(folder_ / "work");
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  // The program is beside the test program; building only the tests does not build it.
  static std::string program() {
    const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "switchyard";
    EXPECT_TRUE(std::filesystem::exists(path)) << "build the target switchyard";
    return path.string();
  }

  Finished run(const Arguments& arguments) const { return execute(program(), arguments); }

  // Runs any program, found as by a shell, in the child's folder.
  Finished execute(const std::string& binary, const Arguments& arguments) const {
    const std::string work = path(""), out = (folder_ / "stdout").string(),
                      err = (folder_ / "stderr").string();
    std::vector<char*> argv{const_cast<char*>(binary.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {  // only calls that are safe after fork
      const int to_out = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int to_err = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const bool ready = to_out >= 0 && to_err >= 0 && ::dup2(to_out, 1) == 1 && ::dup2(to_err, 2) == 2;
      if (ready && ::chdir(work.c_str()) == 0) ::execvp(binary.c_str(), argv.data());
      ::_exit(127);
    }
    Finished finished;
    finished.status = wait_for(child);
    finished.out = read_file(out);
    finished.err = read_file(err);
    return finished;
  }

  // Starts the program and discards its output.
  pid_t start(const Arguments& arguments) const {
    const std::string binary = program(), work = path("");
    std::vector<char*> argv{const_cast<char*>(binary.c_str())};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {  // only calls that are safe after fork
      const int nowhere = ::open("/dev/null", O_WRONLY);
      if (::dup2(nowhere, 1) == 1 && ::dup2(nowhere, 2) == 2 && ::chdir(work.c_str()) == 0)
        ::execv(binary.c_str(), argv.data());
      ::_exit(127);
    }
    return child;
  }

  // Starts the program and waits until it stops at stopping_point() `point`. Returns 0 when it ends first.
  pid_t start_and_stop_at(const std::string& point, const Arguments& arguments) const {
    ::setenv("SWITCHYARD_STOP_AT", point.c_str(), 1);
    const pid_t child = start(arguments);
    ::unsetenv("SWITCHYARD_STOP_AT");
    int state = 0;
    EXPECT_EQ(::waitpid(child, &state, WUNTRACED), child);
    EXPECT_TRUE(WIFSTOPPED(state)) << "ended before " << point;
    return WIFSTOPPED(state) ? child : 0;
  }

  // Trains into out/run, expects success, and returns the lines of metrics.jsonl.
  std::vector<nlohmann::json> train(const Arguments& arguments) const {
    const Finished finished = run(Arguments{"train"} + tiny_model() + arguments);
    EXPECT_EQ(finished.status, 0) << finished.err;
    EXPECT_EQ(finished.err, "");
    return metrics();
  }

  // Trains a model of bytes for one step into out/run.
  void train_bytes() const {
    write("text.txt", std::string(400, 'a') + " and some other letters, too. ");
    train({"vocab_size=257", "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte",
           "enable_checkpointing=true", "steps=1", "max_target_length=24"});
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(path("out/run/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  // Expects exit status `status`, one line on stderr with all of `words`, and no output left behind.
  void expect_refused(const Arguments& arguments, const std::vector<std::string>& words,
                      int status = 2) const {
    std::string command;
    for (const std::string& argument : arguments) command += argument + " ";
    SCOPED_TRACE(command);
    const Finished finished = run(arguments);
    EXPECT_EQ(finished.status, status);
    EXPECT_TRUE(finished.err.starts_with("switchyard: [")) << finished.err;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_TRUE(finished.err.ends_with("\n"));
    for (const std::string& word : words)
      EXPECT_NE(finished.err.find(word), std::string::npos) << word << "\n" << finished.err;
    EXPECT_FALSE(std::filesystem::exists(path("out")));
  }
  // Expects that a training of the tiny model is refused with one line that has all of `words`.
  void expect_no_training(const Arguments& arguments, const std::vector<std::string>& words) const {
    expect_refused(Arguments{"train"} + tiny_model() + arguments, words);
  }

  // Reads a file that a child writes in one piece; null after a minute.
  nlohmann::json when_written(const std::string& name) const {
    for (int i = 0; i < 1200; ++i) {
      const std::string text = read(name);
      if (!text.empty()) return nlohmann::json::parse(text);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  }

  std::string path(const std::string& name) const { return (folder_ / "work" / name).string(); }
  std::string read(const std::string& name) const { return read_file(path(name)); }
  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
  }

 private:
  static std::string read_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  static int wait_for(pid_t child) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    int state = 0;
    while (::waitpid(child, &state, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) {
        ::kill(child, SIGTERM);  // a launcher ends the processes that it started
        std::this_thread::sleep_for(std::chrono::seconds(3));
        ::kill(child, SIGKILL);
        ::waitpid(child, &state, 0);
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }

  std::filesystem::path folder_;
};

}  // namespace switchyard::cli_test
