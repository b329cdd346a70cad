# experiments/my-experiment/interface.py
from transformers import AutoModel, AutoTokenizer
import torch

# Load model (happens once when RPC server starts)
model_path = get_model_path("google/gemma-2-9b")
model = AutoModel.from_pretrained(model_path, device_map="auto")
tokenizer = AutoTokenizer.from_pretrained(model_path)

@expose
def get_model_info() -> dict:
    """Return basic model information."""
    return {
        "num_layers": model.config.num_hidden_layers,
        "hidden_size": model.config.hidden_size,
        "vocab_size": model.config.vocab_size,
    }

@expose
def generate_text(prompt: str, max_tokens: int = 50) -> dict:
    """Generate text from prompt."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    outputs = model.generate(**inputs, max_new_tokens=max_tokens)
    text = tokenizer.decode(outputs[0], skip_special_tokens=True)
    return {"prompt": prompt, "generated": text}

@expose
def compare_texts(text1: str, text2: str) -> dict:
    """Compare similarity of two texts."""
    # Get embeddings
    inputs1 = tokenizer(text1, return_tensors="pt").to(model.device)
    inputs2 = tokenizer(text2, return_tensors="pt").to(model.device)

    with torch.no_grad():
        emb1 = model(**inputs1, output_hidden_states=True).hidden_states[-1].mean(dim=1)
        emb2 = model(**inputs2, output_hidden_states=True).hidden_states[-1].mean(dim=1)

    # Compute cosine similarity
    similarity = torch.nn.functional.cosine_similarity(emb1, emb2).item()

    return {
        "text1": text1,
        "text2": text2,
        "similarity": similarity
    }
