/* Translates with an export through TensorFlow's C API: no Python anywhere.

   translate VERSION_FOLDER INPUT_OPERATION OUTPUT_OPERATION OUTPUT_INDEX \
     [TOKENIZER_LIBRARY...] < LINES

   Each line of standard input is one text of a single batch; each line of standard
   output is its translation. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"
#include "tensorflow/c/tf_tstring.h"

#define MAX_TEXTS 1024

static void check(TF_Status* status, const char* what) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", what, TF_Message(status));
  exit(1);
}

static TF_Output output_of(TF_Graph* graph, const char* name, int index) {
  TF_Output output = {TF_GraphOperationByName(graph, name), index};
  if (output.oper == NULL) {
    fprintf(stderr, "no operation %s\n", name);
    exit(1);
  }
  return output;
}

int main(int count, char** arguments) {
  if (count < 5) {
    fprintf(stderr, "usage: %s FOLDER INPUT OUTPUT INDEX [LIBRARY...]\n", arguments[0]);
    return 2;
  }
  TF_Status* status = TF_NewStatus();
  for (int i = 5; i < count; ++i) {
    TF_LoadLibrary(arguments[i], status);
    check(status, arguments[i]);
  }

  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session = TF_LoadSessionFromSavedModel(
      options, NULL, arguments[1], tags, 1, graph, NULL, status);
  check(status, arguments[1]);

  static char* lines[MAX_TEXTS];
  int64_t num_texts = 0;
  char* line = NULL;
  size_t capacity = 0;
  ssize_t length;
  while (num_texts < MAX_TEXTS && (length = getline(&line, &capacity, stdin)) >= 0) {
    if (length > 0 && line[length - 1] == '\n') line[length - 1] = '\0';
    lines[num_texts++] = strdup(line);
  }
  free(line);

  TF_Tensor* texts = TF_AllocateTensor(TF_STRING, &num_texts, 1,
                                       num_texts * sizeof(TF_TString));
  TF_TString* strings = TF_TensorData(texts);
  for (int64_t i = 0; i < num_texts; ++i) {
    TF_StringInit(&strings[i]);
    TF_StringCopy(&strings[i], lines[i], strlen(lines[i]));
    free(lines[i]);
  }

  TF_Output input = output_of(graph, arguments[2], 0);
  TF_Output output = output_of(graph, arguments[3], atoi(arguments[4]));
  TF_Tensor* translations = NULL;
  TF_SessionRun(session, NULL, &input, &texts, 1, &output, &translations, 1, NULL, 0,
                NULL, status);
  check(status, "translating");

  const TF_TString* found = TF_TensorData(translations);
  for (int64_t i = 0; i < TF_Dim(translations, 0); ++i) {
    fwrite(TF_StringGetDataPointer(&found[i]), 1, TF_StringGetSize(&found[i]), stdout);
    fputc('\n', stdout);
  }

  TF_DeleteTensor(texts);
  TF_DeleteTensor(translations);
  TF_CloseSession(session, status);
  check(status, "closing");
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  return 0;
}
